"""`python -m` with the name of this package: `command`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
