"""What runs in the process of a share: it prepares, checks and times cases. Knows no kernel: it is handed callables."""

METHOD_VERSION = 7
"""Goes up whenever a change to the method could move a number. results/README.md tells what changed."""
