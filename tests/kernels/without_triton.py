"""Contenders where a module is not installed: in a process of its own, which imports `kernels` no earlier."""

import sys


def reasons(module: str) -> dict[str, str]:
    """Why kernels of ours cannot take operands without `module`, once the vendor has multiplied them."""
    sys.modules[module] = None
    import torch

    import kernels
    from kernels.registry import CONTENDERS
    from roofline.operations import contenders

    x = torch.ones(8, 8)
    assert CONTENDERS["torch"].load()(x, x, torch.empty(8, 8))[0, 0] == 8
    whys = {name: CONTENDERS[name].why_not(x, x) for name in ("tiled", "persistent", "warpgroup")}
    return whys | {"matmul": contenders.reason(kernels.matmul, x, x)}
