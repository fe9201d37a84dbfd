"""Datasets of labelled images with splits train, validation and evaluation."""
