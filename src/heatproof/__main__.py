"""Run the command line as ``python -m heatproof``."""

import os
import sys

# `python -m` puts the working folder first, and a psutil.py in a received folder would run in place of the library.
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from heatproof.ending import as_process


def command() -> int:
    """Run the command line, whose modules are imported when a signal can end it in order."""
    from heatproof.cli import main

    return main()


def main() -> None:
    """Run the command line as all that this process does."""
    as_process(command, "command")


if __name__ == "__main__":
    main()
