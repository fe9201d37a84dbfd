"""Architectures, pretrained weights, and the input format of networks."""
