"""`python -m kernels.trial`, which is kernels/experiments/trial.py."""

import sys

from kernels.experiments.trial import main

if __name__ == "__main__":
    sys.exit(main())
