"""PTX's instructions, a file for each family. Each registers what it models at the import of this package."""

from . import access, alu, cluster, control, copies, lanes, local, matrices, sync, tensor_core, tensor_map  # noqa: F401
