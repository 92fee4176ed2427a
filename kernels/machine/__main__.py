"""`python -m kernels.machine`: the command, and the cases that it runs, stand in tests/machine of the checkout."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "machine"))
    from command import main

    sys.exit(main())
