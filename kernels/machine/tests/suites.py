"""Other people's kernels on the machine: Triton's tutorials and Gluon tests, and sweeps of FLA and Liger.

    python -m kernels.machine.tests.suites TRITON_CHECKOUT [--only TEXT] [--seconds 120] [--out TABLE.md]

It takes a checkout of Triton, whose wheels hold no tutorials, and `pip install flash-linear-attention liger-kernel`.
Each script and each test function runs in a process of its own, which `--seconds` and `--gigabytes` limit; launches up
to there count. Benchmarks inside of tutorials are left out: only what they compute is of interest here. The table is of
launches; what was skipped, and why, stands below it.
"""

import argparse
import ast
import inspect
import json
import multiprocessing
import os
import resource
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest
import torch
import triton
from triton._C.libtriton import nvidia

from kernels.machine import launches, plugin
from kernels.machine.intercept import Launch
from kernels.machine.pretend import UncoveredError

SCRIPTS = "0[1-4]*.py", "05*.py", "07*.py", "08*.py", "09*.py", "10*.py", "11*.py"  # 06 has tests


@dataclass
class Item:
    """What runs in a process: a function, or the tests of one name in a file."""

    suite: str
    name: str
    run: Callable[[], None]


class Written(list):
    """The verdicts of a block, written down at once: a process may be ended."""

    log: Path

    def append(self, launch: Launch) -> None:
        super().append(launch)
        file, line = launch.place
        verdict = launch.verdict
        note(kernel=launch.kernel, kind=verdict.kind, at=f"{Path(file).name}:{line}", text=verdict.text)


def note(**entry) -> None:
    with Written.log.open("a") as log:
        print(json.dumps(entry), file=log)


# What runs.


def items(checkout: Path) -> Iterator[Item]:
    yield from liger_items()
    yield from of_triton(checkout)
    yield from fla_items()


def of_triton(checkout: Path) -> Iterator[Item]:
    tutorials = checkout / "python" / "tutorials"
    for file in sorted(file for pattern in SCRIPTS for file in tutorials.glob(pattern)):
        if not file.stem.endswith("cpu"):
            yield Item("tutorials", file.stem, lambda file=file: script(file))
    tested = [*tutorials.glob("06*.py"), *sorted((tutorials / "gluon").glob("[0-9]*.py"))]
    for suite, files in {
        "tutorials": tested[:1],
        "gluon tutorials": tested[1:],
        "gluon tests": [checkout / "python" / "test" / "gluon" / "test_core.py"],
    }.items():
        for file in files:
            for name in test_names(file):
                yield Item(suite, f"{file.stem}::{name}", lambda file=file, name=name: tests(file, name))


def test_names(file: Path) -> list[str]:
    nodes = ast.parse(file.read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def script(file: Path) -> None:
    sys.argv[:] = [str(file)]
    sys.path.insert(0, str(file.parent))
    left_out = patch.object(triton.testing.Mark, "run", lambda *arguments, **options: None)
    untimed = patch.object(triton.testing, "do_bench", lambda *arguments, **options: 1.0)
    with left_out, untimed, block():
        runpy.run_path(str(file), run_name="__main__")


def tests(file: Path, name: str) -> None:
    os.chdir(file.parent)
    plugins = "no:cacheprovider", "kernels.machine.tests.suites", "kernels.machine.plugin"
    options = ["-q", *(f"-p{module}" for module in plugins), "--machine"]
    with patch.object(plugin, "block_of", lambda config: block()):
        pytest.main([*options, "--rootdir", str(file.parent), f"{file}::{name}"])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        note(skipped=f"{report.nodeid.rpartition('::')[2]}: {report.longrepr[2].removeprefix('Skipped: ')}")
    elif report.failed and "machine" not in dict(report.user_properties):
        note(skipped=f"{report.nodeid.rpartition('::')[2]}: it fails, {last_line(report.longreprtext)}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        note(skipped=f"{Path(report.nodeid).stem}: it is not imported, {last_line(str(report.longrepr))}")


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[0].removeprefix("E").strip()[:150]


def block() -> launches:
    judged = launches(seeds=SEEDS, raises=False)
    judged.verdicts = Written()
    return judged


# FLA: every function of fla.ops whose arguments are of these shapes: 2 heads of 32, of 80 steps.

STEPS, HEADS, WIDTH = 80, 2, 32
WIDE = dict.fromkeys(("q", "k", "v", "r", "a", "b", "p", "s", "gk", "delta"), (1, STEPS, HEADS, WIDTH))
NARROW = dict.fromkeys(("beta", "beta_atk", "g_atk", "log_alpha", "log_mu", "lamb"), (1, STEPS, HEADS))
GATED_BY_CHANNEL = ("_gla", "kda", "gsa", "rwkv")
"""Operations whose gates g and w are of each channel, but for simple_gla's."""
NUMBERS = dict(layer_idx=1, num_layers=4)


def fla_items() -> Iterator[Item]:
    for name in fla_operations():
        yield Item("FLA", name, lambda name=name: fla(name))


def fla_operations() -> list[str]:
    tree = ast.parse(Path(find("fla"), "ops", "__init__.py").read_text())
    names = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return sorted(name for name in set(names) if name.startswith(("chunk", "fused", "parallel")))


def find(package: str) -> str:
    from importlib.util import find_spec

    return find_spec(package).submodule_search_locations[0]


def fla(name: str) -> None:
    with block():
        import fla.ops

        function = getattr(fla.ops, name)
        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        names = [p.name for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
        if name.split("_", 1)[-1] in ("simple_gla", "gated_delta_rule"):
            names += ["g"] * ("g" not in names)
        if names == [] or (unknown := [argument for argument in names if not shape_of(name, argument)]):
            note(skipped=f"{name}: arguments that the sweep does not make: {', '.join(unknown if names else ['all'])}")
            return
        given = {argument: operand(name, argument) for argument in names}
        step(lambda: function(**given), given.values())


def shape_of(operation: str, argument: str) -> tuple[int, ...] | int | None:
    is_by_channel = any(word in operation for word in GATED_BY_CHANNEL) and "simple_gla" not in operation
    if argument == "u":
        return HEADS, WIDTH
    if argument in ("g", "w", "x") and "hgrn" in operation:
        return 1, STEPS, WIDTH
    if argument in ("g", "w"):
        return WIDE["q"] if is_by_channel or argument == "w" else NARROW["beta"]
    return WIDE.get(argument) or NARROW.get(argument) or NUMBERS.get(argument)


def operand(operation: str, argument: str) -> torch.Tensor | int:
    if argument in NUMBERS:
        return NUMBERS[argument]
    values = torch.randn(shape_of(operation, argument), device="cuda")
    if argument in ("g", "gk", "log_alpha", "log_mu", "g_atk") or (argument == "w" and "rwkv" in operation):
        values = torch.nn.functional.logsigmoid(values)
    elif argument in ("beta", "beta_atk", "lamb"):
        values = values.sigmoid()
    else:
        values = torch.nn.functional.normalize(values, dim=-1)
    values = values if argument in ("log_alpha", "log_mu") else values.bfloat16()
    return values.requires_grad_()


def step(function: Callable, operands) -> None:
    """Forward and backward."""
    result = function()
    outputs = [value for value in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(value)]
    outputs = [value for value in outputs if value.requires_grad]
    if not outputs:
        note(skipped="its backward pass: no result has a gradient")
    elif any(torch.is_tensor(value) and value.requires_grad for value in operands):
        sum(value.float().sum() for value in outputs).backward()


# Liger: its autograd functions, with what they are called with.


def liger_calls() -> dict[str, tuple[str, Callable[[], tuple]]]:
    def x(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, device="cuda").to(dtype).requires_grad_()

    def labels(n, classes):
        return torch.randint(classes, (n,), device="cuda")

    def logs(*shape):
        return torch.randn(shape, device="cuda").log_softmax(-1)

    def moe():
        chosen = torch.stack([torch.randperm(4, device="cuda")[:2] for _ in range(24)]).int()
        return x(24, 64), x(4, 128, 64), x(4, 64, 64), chosen, x(24, 2)

    return dict(
        attn_res=("LigerAttnResFunction", lambda: (x(3, 2, 8, 64), x(64), x(64), 1e-6)),
        cross_entropy=("LigerCrossEntropyFunction", lambda: (x(16, 1000), labels(16, 1000), None)),
        dyt=("LigerDyTFunction", lambda: (x(2, 8, 128), x(1), x(128), x(128))),
        fused_add_rms_norm=("LigerFusedAddRMSNormFunction", lambda: (x(8, 128), x(8, 128), x(128), 1e-6)),
        fused_linear_cross_entropy=(
            "LigerFusedLinearCrossEntropyFunction", lambda: (x(16, 64), x(500, 64), labels(16, 500))
        ),
        fused_linear_jsd=(
            "LigerFusedLinearJSDFunction", lambda: (x(16, 64), x(500, 64), x(16, 64).detach(), x(500, 64).detach())
        ),
        fused_moe=("LigerFusedMoEFunction", moe),
        fused_neighborhood_attention=(
            "LigerFusedNeighborhoodAttentionFunction", lambda: (x(1, 2, 32, 32), x(1, 2, 32, 32), x(1, 2, 32, 32))
        ),
        geglu=("LigerGELUMulFunction", lambda: (x(8, 256), x(8, 256))),
        group_norm=("LigerGroupNormFunction", lambda: (x(2, 8, 64), x(8), x(8), 8, 4, 1e-6)),
        jsd=("LigerJSDFunction", lambda: (logs(16, 500).requires_grad_(), logs(16, 500))),
        kl_div=("LigerKLDivLossFunction", lambda: (logs(16, 500).requires_grad_(), logs(16, 500).exp())),
        layer_norm=("LigerLayerNormFunction", lambda: (x(8, 200), x(200), x(200), 1e-6)),
        multi_token_attention=("LigerMultiTokenAttentionFunction", lambda: (x(1, 2, 16, 16), x(2, 2, 3, 3))),
        poly_norm=("LigerPolyNormFunction", lambda: (x(8, 128), x(3), x(1))),
        relu_squared=("LigerReLUSquaredFunction", lambda: (x(8, 256),)),
        rms_norm=("LigerRMSNormFunction", lambda: (x(8, 200), x(200), 1e-6)),
        rope=("LigerRopeFunction", lambda: (x(1, 4, 16, 64), x(1, 2, 16, 64), *[x(1, 16, 64).detach()] * 2)),
        softmax=("LigerSoftmaxFunction", lambda: (x(8, 500),)),
        sparsemax=("LigerSparsemaxFunction", lambda: (x(8, 500), -1)),
        swiglu=("LigerSiLUMulFunction", lambda: (x(8, 256), x(8, 256))),
        tvd=("LigerTVDLossFunction", lambda: (logs(16, 500).exp().requires_grad_(), logs(16, 500).exp())),
    )  # fmt: skip


def liger_items() -> Iterator[Item]:
    for name in liger_calls():
        yield Item("Liger", name, lambda name=name: liger(name))


def liger(name: str) -> None:
    with block():
        from importlib import import_module

        function, make = liger_calls()[name]
        operands = make()
        step(lambda: getattr(import_module(f"liger_kernel.ops.{name}"), function).apply(*operands), operands)


# The processes, and the table.

SEEDS = 2


def child(item: Item, log: Path, gigabytes: float) -> None:
    Written.log = log
    resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 2**30),) * 2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    out = os.open(log.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.modules["suites"] = sys.modules["__main__"]  # for pytest, too
    nvidia.cublas.CublasLt = lambda *arguments: None  # of benchmarks, but made at import
    try:
        item.run()
    except (Exception, SystemExit) as error:
        kind = "not on the machine" if isinstance(error, (UncoveredError, NotImplementedError)) else "it fails"
        note(skipped=f"{item.name}: {kind}, {type(error).__name__}: {str(error).strip()[:150]!r}")
        raise


def entries_of(item: Item, options: argparse.Namespace, folder: Path) -> list[dict]:
    """What a process of its own has noted: its launches, and what was skipped."""
    log = folder / f"{item.name.replace('/', '-')}.jsonl"
    log.touch()
    process = multiprocessing.get_context("fork").Process(target=child, args=(item, log, options.gigabytes))
    process.start()
    process.join(options.seconds)
    late = process.is_alive()
    process.kill()
    process.join()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    if late:
        entries.append(dict(skipped=f"{item.name}: what {options.seconds} s do not suffice for"))
    elif process.exitcode and not any("skipped" in entry for entry in entries):
        entries.append(dict(skipped=f"{item.name}: exit code {process.exitcode}"))
    for entry in entries:
        entry["suite"] = item.suite
        if "skipped" in entry:
            entry["name"], _, entry["skipped"] = entry["skipped"].partition(": ")
    return entries


def summary(entries: list[dict], options: argparse.Namespace) -> str:
    """A table of the suites' launches; then what was skipped, the same reasons of a suite together."""
    packages = [f"{name} {version(name)}" for name in ("torch", "triton", "fla-core", "liger-kernel")]
    lines = [f"{', '.join(packages)}; {options.seeds} orders of events, {options.seconds:.0f} s a process.", ""]
    lines += ["| suite | launches | exact | accused | unknown | skipped |", "|---|---|---|---|---|---|"]
    frame = pd.DataFrame(entries, columns=["suite", "kind", "at", "name", "skipped"])
    reasons = []
    for suite, rows in frame.groupby("suite", sort=False):
        kinds = rows["kind"].value_counts()
        bad = rows[~rows["kind"].isin(["exact", "unknown"])].dropna(subset="kind")
        accused = (bad["kind"] + " " + bad["at"]).value_counts(sort=False)
        text = ", ".join(f"{place} ({count})" for place, count in accused.items()) or "0"
        cells = suite, kinds.sum(), kinds.get("exact", 0), text, kinds.get("unknown", 0), rows["skipped"].count()
        lines.append(f"| {' | '.join(map(str, cells))} |")
        for reason, names in rows.groupby("skipped", sort=False)["name"]:
            few = names.str.partition("[")[0].unique()[:6]
            reasons.append(f"- {suite}, {len(names)}: {reason} ({', '.join(few)})")
    return "\n".join([*lines, "", *reasons]) + "\n"


def main() -> int:
    global SEEDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, metavar="TRITON_CHECKOUT")
    parser.add_argument("--only", default="", metavar="TEXT", help="items whose suite or name has this in it")
    parser.add_argument("--seeds", type=int, default=2, help="orders of events of each launch (2)")
    parser.add_argument("--seconds", type=float, default=120, help="that a process may take (120)")
    parser.add_argument("--gigabytes", type=float, default=6, help="of data that a process may have (6)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="of the table, beside what is printed")
    options = parser.parse_args()
    if not (options.checkout / "python" / "tutorials").is_dir():
        parser.error(f"{options.checkout} has no python/tutorials: it takes a checkout of Triton")
    SEEDS, sys.argv[1:] = options.seeds, []
    options.checkout = options.checkout.resolve()
    entries: list[dict] = []
    with launches(raises=False):
        pass  # it imports what all processes need
    with tempfile.TemporaryDirectory() as folder:
        for item in items(options.checkout):
            if options.only not in f"{item.suite} {item.name}":
                continue
            print(f"{item.suite}  {item.name}", flush=True)
            for entry in entries_of(item, options, Path(folder)):
                entries.append(entry)
                if entry.get("kind") != "exact":
                    print(f"    {entry}", flush=True)
            if options.out:
                options.out.write_text(summary(entries, options))
    print(summary(entries, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
