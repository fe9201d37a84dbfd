"""Responses: outputs of networks for perturbed images, and the stage that caches them."""
