"""The result tables of a run, and the figures that one table alone needs."""
