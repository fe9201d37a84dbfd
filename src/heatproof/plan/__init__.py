"""From a config to what every job is told: the one owner of names, paths, keys and specs. Importable without torch."""
