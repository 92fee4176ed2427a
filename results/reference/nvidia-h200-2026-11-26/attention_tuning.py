# ruff: noqa: E402, E501, SIM905 (as it ran)
"""Time the configurations of kernels.attention on this GPU: attention_tuning.py CHECKOUT [SECONDS].

It needs a CHECKOUT of commit ba596ac, and ends after SECONDS (58) with what is measured by then."""

import faulthandler
import math
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

CHECKOUT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
sys.path.insert(0, CHECKOUT)
os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.testing import do_bench

from kernels import attention as A

DIRECTIONS = {"forward": 4, "dkdv": 8, "dq": 6}  # FLOP per batch * heads * length^2 * width: the matmuls that each does
ARGUMENTS = {
    "forward": dict(q_ptr="q", k_of="k", v_of="v", out_of="out", lse_ptr="lse"),
    "dkdv": dict(
        q_of="q", k_ptr="k", v_ptr="v", grad_of="grad", dk_of="dk", dv_of="dv", lse_ptr="lse", delta_ptr="delta"
    ),
    "dq": dict(q_ptr="q", k_of="k", v_of="v", grad_ptr="grad", dq_of="dq", lse_ptr="lse", delta_ptr="delta"),
}
OUTPUTS = {"forward": ["out"], "dkdv": ["dk", "dv"], "dq": ["dq"]}
CASES = [(8, 1, 8192, width, causal) for width in (128, 64) for causal in (False, True)] + [(1, 128, 16384, 128, True)]
BEGUN = time.perf_counter()


def launch_of(direction, tensors, causal, config):
    args = {argument: tensors[name] for argument, name in ARGUMENTS[direction].items()}
    return A.launch(direction, args, causal, config, True)


def name_of(config):
    return f"{config['BLOCK_M']}x{config['BLOCK_N']} warps{config['num_warps']} stages{config['num_stages']}" + (
        f" maxnreg{config['maxnreg']}" if config.get("maxnreg") else ""
    )


def compile_one(task):
    """Put one binary into Triton's cache, without a GPU."""
    direction, width, causal, config = task
    from kernels.machine.compile import compile_for

    tensors = {name: torch.empty(1, 2, 8192, width, dtype=torch.bfloat16) for name in "q k v out grad dq dk dv".split()}
    tensors |= {name: torch.empty(1, 2, 8192) for name in ("lse", "delta")}
    try:
        compile_for(90, launch_of(direction, tensors, causal, config))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def error_of(actual, wanted):
    return ((actual.float() - wanted.float()).norm() / wanted.float().norm()).item()


def milliseconds(function):
    return do_bench(function, warmup=5, rep=40, return_mode="median")


def sdpa(tensors, causal, backend):
    """Return out, gradients, and the milliseconds of forward and backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    leaves = [tensors[name].detach().requires_grad_() for name in "qkv"]
    with sdpa_kernel(getattr(SDPBackend, backend)):
        call = lambda: torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)  # noqa: E731
        out = call()
        back = lambda: torch.autograd.grad(out, leaves, tensors["grad"], retain_graph=True)  # noqa: E731
        return out.detach(), back(), milliseconds(call), milliseconds(back)


def case(batch, heads, length, width, causal, failed):
    shape = batch, heads, length, width
    base = batch * heads * length**2 * width / (2 if causal else 1)
    print(f"\n== batch {batch} heads {heads} length {length} width {width} {'causal' if causal else 'full'}"
          f"  ({time.perf_counter() - BEGUN:.0f} s)", flush=True)  # fmt: skip
    tensors = {n: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for n in ("q", "k", "v", "grad")}
    want = {}
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        try:
            out, grads, forward_ms, backward_ms = sdpa(tensors, causal, backend)
        except Exception as error:
            print(f"  sdpa {backend}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        want = want or dict(out=out, dq=grads[0], dk=grads[1], dv=grads[2])
        for direction, factor, ms in (("forward", 4, forward_ms), ("backward", 10, backward_ms)):
            print(f"  sdpa {backend:16} {direction:9} {ms:8.3f} ms {factor * base / ms / 1e9:6.0f} TFLOP/s", flush=True)
        del out, grads
    tensors |= {name: torch.empty_like(tensors["q"]) for name in ("out", "dq", "dk", "dv")}
    tensors |= {name: torch.empty(shape[:3], device="cuda") for name in ("lse", "delta")}
    best = {}
    for direction, factor in DIRECTIONS.items():
        if direction == "dkdv":  # from the forward of the table
            A.forward(*(tensors[n] for n in "qkv"), causal, tensors["out"], tensors["lse"])
            delta = A.launch_delta(tensors["out"], tensors["grad"], tensors["delta"])
            delta.run(torch.device("cuda", 0))
            best["delta"] = milliseconds(lambda launch=delta: launch.run(torch.device("cuda", 0)))
            print(f"  delta {best['delta']:.3f} ms")
        lines = []
        for number, config in enumerate(A.candidates(direction, width)):
            label = name_of(config) + " (table)" * (number == 0)
            if problem := failed.get((direction, width, causal, label.removesuffix(" (table)"))):
                lines.append((math.inf, f"  {direction:8} {label:44} does not compile: {problem[:80]}"))
                continue
            try:
                for name in OUTPUTS[direction]:
                    tensors[name].fill_(math.nan)
                launch = launch_of(direction, tensors, causal, config)
                launch.run(torch.device("cuda", 0))
                errors = [error_of(tensors[name], want[name]) for name in OUTPUTS[direction]] if want else []
                ms = milliseconds(lambda launch=launch: launch.run(torch.device("cuda", 0)))
            except Exception as error:
                if "CUDA error" in str(error):
                    raise
                lines.append(
                    (math.inf, f"  {direction:8} {label:44} {type(error).__name__}: {str(error).splitlines()[0][:80]}")
                )
                continue
            verdict = "ok" if all(e < 1e-2 for e in errors) else "WRONG"
            text = (
                f"{ms:8.3f} ms {factor * base / ms / 1e9:6.0f} TFLOP/s  error {max(errors, default=-1):.1e} {verdict}"
            )
            lines.append((ms, f"  {direction:8} {label:44} {text}"))
            if verdict == "ok":
                best[direction] = min(ms, best.get(direction, math.inf))
        print("\n".join(line for _, line in sorted(lines)), flush=True)
    if {"dkdv", "dq", "delta"} <= best.keys():
        ms = sum(best[name] for name in ("dkdv", "dq", "delta"))
        print(
            f"  backward {'best dkdv + dq + delta':44} {ms:8.3f} ms {10 * base / ms / 1e9:6.0f} TFLOP/s (10 B H T^2 D)"
        )


def main():
    faulthandler.dump_traceback_later(float(sys.argv[2]) if len(sys.argv) > 2 else 58, exit=True)
    tasks = [
        (d, w, causal, c) for w in (128, 64) for causal in (False, True) for d in DIRECTIONS for c in A.candidates(d, w)
    ]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        problems = list(pool.map(compile_one, tasks))
    failed = {(*t[:3], name_of(t[3])): p for t, p in zip(tasks, problems, strict=True) if p}
    print(f"torch {torch.__version__} triton {triton.__version__} {torch.cuda.get_device_name()}"
          f"  {len(tasks)} compiled, {len(failed)} failed, {time.perf_counter() - BEGUN:.0f} s", flush=True)  # fmt: skip
    for arguments in CASES:
        try:
            case(*arguments, failed)
        except torch.cuda.OutOfMemoryError as error:
            print(f"  {error}".splitlines()[0])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
