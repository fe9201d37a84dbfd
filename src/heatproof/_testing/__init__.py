"""Rules that explainers and metrics keep, checked on tiny networks: see `heatproof.testing`."""
