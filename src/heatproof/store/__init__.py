"""Results on disk: manifests, Zarr stores, and records of source files."""
