"""What every room uses: errors, names, options and random numbers; no torch."""
