"""The two ways in which heatproof says no."""


class HeatproofError(Exception):
    """Something that the user can mend: one sentence that names the thing and the remedy.

    Command-line entry points print it without a traceback.
    """


class NotApplicable(Exception):
    """An explainer cannot work on this model; the text is the reason shown as a gap in the tables."""
