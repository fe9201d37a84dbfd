"""Perturbations of images, and the outputs of networks for perturbed images."""
