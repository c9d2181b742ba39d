"""`python -m shim` is `pydockershim`."""

import sys

from shim.cli import main

if __name__ == "__main__":
    sys.exit(main())
