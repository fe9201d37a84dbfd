"""The keys of a config, their types, and the files that hold them."""
