"""`python -m kernels.inspect`."""

import sys

from kernels.inspect.compiled import main

if __name__ == "__main__":
    sys.exit(main())
