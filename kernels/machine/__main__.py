"""`python -m kernels.machine`."""

import sys

from kernels.machine.command import main

if __name__ == "__main__":
    sys.exit(main())
