"""The room of a worker: it prepares, checks and times cases. It knows no kernel, and is handed callables."""

METHOD_VERSION = 8
"""Goes up whenever a change to the method could move a number. results/README.md tells what changed."""
