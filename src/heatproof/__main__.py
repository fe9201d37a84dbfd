"""Run the command line as ``python -m heatproof``."""

import os
import sys

# A psutil.py in a received folder would run in place of the library. `python -m` puts the working folder first.
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]
# An empty entry of PYTHONPATH, as PYTHONPATH=$PYTHONPATH:/mine leaves, stands for the working folder and names none.
if "" in os.environ.get("PYTHONPATH", "none").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, os.environ["PYTHONPATH"].split(os.pathsep)))
    if os.getcwd() not in map(os.path.abspath, filter(None, os.environ["PYTHONPATH"].split(os.pathsep))):
        sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())]
# Of all that a command starts.
os.environ["PYTHONSAFEPATH"] = "1"

from heatproof.base.ending import run_process


def command() -> int:
    """Run the command line, whose modules are imported when a signal can end it in order."""
    from heatproof.commands.cli import main

    return main()


def main() -> None:
    """Run the command line as all that this process does."""
    run_process(command, "command")


if __name__ == "__main__":
    main()
