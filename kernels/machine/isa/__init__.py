"""PTX's instructions, a file for each family. Each registers what it models at the import of this package."""

from . import alu, atomics, cluster, control, cp_async, lanes, tma, wgmma  # noqa: F401 (they import the others)
