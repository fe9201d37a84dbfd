"""Claims of published papers, tested on the scores of a run."""
