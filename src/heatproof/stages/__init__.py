"""Stages that need both sides: maps from explainers, and what a network says of perturbed images."""
