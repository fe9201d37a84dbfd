"""Rules that explainers and metrics have to follow, checked on tiny networks: see `heatproof.testing`."""
