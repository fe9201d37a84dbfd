"""Basics that every package uses: grids, options, names, registries, digests and random numbers; no torch."""
