"""Whether this machine can do what a visit needs before anything else: `python -m results.first_call kernel|compile`.

`kernel` launches `kernels.matmul` as the Triton that is here compiles it, or has it in its cache: its assembler may be
newer than the driver. `compile` calls a function through torch.compile, which may be older than this Triton. Where one
fails, the last line says what cannot be measured, and the way out.
"""

import sys

import torch
import triton

import kernels
from kernels.bench import checks
from roofline.host.arguments import Parser
from roofline.host.device_errors import reason
from roofline.operations.matmul import Matmul

CASE = Matmul("xxl", "up", 8, 256, "bf16")
"""The matmul that is launched: one of a default run, so that a pack has it."""

WAYS_OUT = {
    "kernel": "a visit needs it: come again with make pack TRITON=3.7.1 and an OUT of its own",
    "compile": "attention, training steps and the gated layer need it, and are left out",
}


def launch_kernel(device: str) -> None:
    """Multiply by `kernels.matmul`, and compare some rows with their sums. Raises ValueError where they differ."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float16
    x, w = (torch.randn(size, CASE.k, device=device, dtype=dtype) for size in (CASE.m, CASE.n))
    error = checks.error_of(kernels.matmul(x, w), checks.reference_sums(x, w))
    if not error < 3e-3:
        raise ValueError(f"kernels.matmul has a relative error of {error:.2g}, limit 3e-3")


def call_compiled(device: str) -> None:
    """Call a function that torch compiles to one kernel. Raises ValueError where its result is another."""
    x = torch.randn(4096, device=device)
    if not torch.allclose(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1, atol=1e-5):
        raise ValueError("a compiled sin(x) + 1 is another than that of torch")


CALLS = {"kernel": launch_kernel, "compile": call_compiled}


def main(arguments: list[str], device: str = "cuda") -> int:
    parser = Parser(prog="python -m results.first_call", description=__doc__.partition("\n")[0])
    parser.add_argument("call", choices=WAYS_OUT)
    call = parser.parse_args(arguments).call
    versions = f"Triton {triton.__version__}, torch {torch.__version__}"
    try:
        CALLS[call](device)
    except Exception as error:  # of Triton, torch or the driver
        print(f"{call} fails under {versions} ({reason(error)}): {WAYS_OUT[call]}")
        return 1
    print(f"{call}: right, under {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
