"""`python -m kernels.machine`: the command, and the cases that it runs, stand in tests/machine of the checkout."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests" / "machine"

if __name__ == "__main__":
    if not (FOLDER / "command.py").is_file():
        sys.exit(f"python -m kernels.machine: no {FOLDER / 'command.py'}; run it in a checkout that has its tests")
    sys.path.insert(0, str(FOLDER))
    from command import main

    sys.exit(main())
