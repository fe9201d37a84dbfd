"""Perturbations of images, and the network's outputs for them."""
