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

from heatproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
