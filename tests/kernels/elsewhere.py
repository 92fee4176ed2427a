"""What runs in another process for a test: see the fixture of this name."""

import os
from pathlib import Path


def in_checkout(function, *arguments):
    """Call a function in the checkout: the process may have begun while a test was elsewhere."""
    os.chdir(Path(__file__).parents[2])
    return function(*arguments)
