"""Responses: outputs of networks for perturbed images, which are cached and shared by metrics."""
