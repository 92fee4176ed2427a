"""PTX's instructions, a file for each family. Each registers what it models at the import of this package."""

from . import (  # noqa: F401
    access,
    alu,
    atomics,
    cluster,
    control,
    cp_async,
    lanes,
    local,
    matrices,
    mma,
    sync,
    tensor_map,
    tma,
    wgmma,
)
