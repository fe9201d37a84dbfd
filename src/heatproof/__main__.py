"""Run the command line as ``python -m heatproof``."""

import sys

from heatproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
