"""Run the command line as ``python -m heatproof``."""

import os
import sys

# `python -m` puts the working folder first in the module search path, so that a psutil.py in a received folder would be
# imported in place of the library.
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]
# An empty entry of PYTHONPATH, which PYTHONPATH=$PYTHONPATH:/mine can leave, stands for the working folder although the
# user did not name it.
if "" in os.environ.get("PYTHONPATH", "none").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, os.environ["PYTHONPATH"].split(os.pathsep)))
    if os.getcwd() not in map(os.path.abspath, filter(None, os.environ["PYTHONPATH"].split(os.pathsep))):
        sys.path[:] = [folder for folder in sys.path if folder not in ("", os.getcwd())]
# For all processes that the command starts.
os.environ["PYTHONSAFEPATH"] = "1"

from heatproof.core.signals import run_process


def command() -> int:
    """Run the command line; its modules are imported here, after signal handlers have been installed."""
    from heatproof.workflow.commands.cli import main

    return main()


def main() -> None:
    """Run the command line as the main function of this process."""
    run_process(command, "command")


if __name__ == "__main__":
    main()
