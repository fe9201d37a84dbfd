"""Perturbed images, and what a model says of them."""
