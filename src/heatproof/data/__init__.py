"""Datasets: images with labels, split into train, validation and evaluation."""
