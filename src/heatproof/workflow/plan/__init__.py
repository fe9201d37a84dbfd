"""Plan a config: names, paths, keys and specs of all jobs. Importable without torch."""
