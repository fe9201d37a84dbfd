"""Run the command line as ``python -m heatproof``."""

import os
import sys

# `python -m` puts the working folder first, and a psutil.py in a received folder would run in place of the library.
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from heatproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
