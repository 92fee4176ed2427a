"""`roofline counters RUN [CASE...]`: what a call of a run's cases moves and multiplies, by Nsight Compute.

One call of `ncu` counts `commands.launcher`, which makes a copy of known size, and then calls each case three times.
Counts are lines of the run's journal. Nothing is timed: ncu replays each kernel, and flushes the caches before it.

ncu is called without nsight-python, which takes an ncu of CUDA 13.3 and five packages more, and saves its command and
the reading of its table. Launcher, copy and journal would be ours with it too.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from contextlib import closing, nullcontext
from io import StringIO
from pathlib import Path
from subprocess import PIPE, STDOUT

from roofline.commands.launcher import CALLS, COPY
from roofline.host.machine import anonymous
from roofline.store import journal
from roofline.store.run import Run, Shape

LOG = "ncu.log"
"""In the run's folder: what ncu printed the last time, from which any number can be read again."""
SHAPES = 4
"""So many shapes are counted where the command names no case."""
COPY_BYTES = 2**31
"""The copy reads and writes so many together."""
TOLERANCE = 0.05
"""The count of the copy may be off by so much. What a kernel leaves in the L2 cache is written after its end: some
50 MB of 2 GiB."""

METRICS = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "tensor_cycles": ("sm__pipe_tensor_cycles_active.sum",),
    "sm_cycles": ("sm__cycles_elapsed.sum",),
}
"""Each field is the sum of its metrics, of NVIDIA's Nsight Compute documentation, "Metrics Reference". The level 1
cache is left out: its counters miss what TMA loads."""

DENIED = "ERR_NVGPUCTRPERM"
NO_PERMISSION = (
    f"this user may not read the GPU's counters ({DENIED}): it takes root, in a container --cap-add=SYS_ADMIN, or the "
    "driver's option NVreg_RestrictProfilingToAdminUsers=0"
)


def run(options: Namespace) -> int:
    """Count the cases that were asked for, journal and print the counts. Returns the exit code: 1 where one has none.

    Raises ValueError where nothing can be counted, and OSError where the journal cannot be written."""
    folder = options.folder
    cases = chosen(journal.load(folder), options.cases)
    tool = shutil.which("ncu")
    if not tool:
        raise ValueError("ncu is not on PATH: install Nsight Compute, or add its folder, as /usr/local/cuda/bin")
    with journal.hold(folder) or nullcontext(), closing(journal.Journal(folder)) as file:
        print(f"counting {len(cases)} cases by {tool}", flush=True)
        printed, lines = launch(tool, folder, cases)
        counted = counts(printed, lines)
        copied = check_copy(counted, printed)
        failures = {line["failed"]: line["reason"] for line in lines if "failed" in line}
        version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
        number = version.partition("Version ")[2].partition(" ")[0]
        source = {"tool": "ncu", "version": number, "cache": "flushed", "calls": CALLS, "metrics": METRICS}
        for case, (shape, contender) in cases.items():
            if case in counted:
                head = {"kind": "counters", "shape": shape.id, "contender": contender, "counter_source": source}
                file.write(head | counted[case])
            else:
                failures.setdefault(case, f"not all of its calls were counted, {LOG} has what ncu printed")
        text = (
            f"Counters: Nsight Compute {number} counted {len(cases) - len(failures)} of {len(cases)} cases, "
            f"each the median of {CALLS} calls after the timed run, with the caches flushed before each kernel. Of a "
            f"copy's bytes it counted {100 * copied:.1f} %. What a kernel leaves in the L2 cache is written after its "
            "end: bytes of small outputs are missing"
        )
        for case, reason in failures.items():
            text += f"; {case}: {reason}"
        file.write({"kind": "note", "about": "counters", "text": f"{text}."})
    print(f"{text}.\n`roofline report {folder}` draws it")
    return int(bool(failures))


def chosen(run: Run, wanted: list[str]) -> dict[str, tuple[Shape, str]]:
    """The `wanted` cases of `run`, or those `by_default`.

    Raises ValueError for a run of the CPU, and for what cannot be counted. An arm cannot: its kernels wait for one
    another, and ncu replays them one by one."""
    if run.metadata["machine"]["source"] != "gpu":
        raise ValueError("this run measured the CPU: take a run of a GPU")
    cases = {}
    for shape, name in run.cases():
        if shape.analysis == "throughput":
            cases[f"{shape.id}-{name}"] = shape, name
    named = {}
    for case in wanted or by_default(run):
        if case not in cases:
            raise ValueError(f"{case!r} is not measured, or is an arm: name cases as `roofline csv RUN` prints them")
        named[case] = cases[case]
    return named


def by_default(run: Run) -> list[str]:
    """The baseline, and the fastest beside it, of a few matmuls."""
    matmuls = [shape for shape in run.shapes.values() if shape.op == "matmul" and shape.rivals]
    cases = []
    for shape in matmuls[:: math.ceil(len(matmuls) / SHAPES) or 1]:
        fastest = min(shape.rivals, key=shape.time)
        cases += [f"{shape.id}-{shape.baseline}", f"{shape.id}-{fastest}"]
    return cases


def launch(tool: str, folder: Path, cases: Iterable[str]) -> tuple[str, list[dict]]:
    """Have `tool` count the launcher. Returns what both printed, and what the launcher told."""
    log = folder.resolve() / LOG
    log.write_text("")
    command = [
        *(tool, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *("--cache-control", "all", "--profile-from-start", "off", "--target-processes", "application-only"),
        *("--metrics", ",".join(sum(METRICS.values(), ())), "--log-file", str(log)),
        *(sys.executable, "-m", "roofline.commands.launcher", str(folder.resolve()), str(COPY_BYTES), *cases),
    ]
    env = os.environ | {"LC_ALL": "C"}  # else some print 1.234,5
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        cwd=root,
        env=env,
        stdout=PIPE,
        stderr=STDOUT,
        errors="replace",
        check=False,
    )
    printed = anonymous(f"{log.read_text(errors='replace')}\n{done.stdout}")
    log.write_text(printed)
    return printed, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def counts(printed: str, lines: list[dict]) -> dict[str, dict[str, int | None]]:
    """{case: {field: count}} of the cases whose calls, of which the launcher told `lines`, were all counted: the median
    over its calls of the sum over a call's kernels. None where one has no such count: the sum would be too small.

    A call is a marker and its kernels, as many as they are. ncu prints a row of names, a row of units and a row for
    each kernel, between lines without quotation marks."""
    import pandas

    rows = [line for line in printed.splitlines() if line.startswith('"')]
    if not rows:
        return {}
    table = pandas.read_csv(StringIO("\n".join(rows)), skiprows=[1], thousands=",")
    names = table["Kernel Name"]
    is_marker = names == names[0]
    fields = {}
    for field, metrics in METRICS.items():
        counted = table.reindex(columns=metrics).apply(pandas.to_numeric, errors="coerce")
        fields[field] = counted.sum(axis=1, skipna=False).mask(is_marker, 0)
    calls_of_rows = pandas.DataFrame(fields).groupby(is_marker.cumsum() - 1)
    by_call = calls_of_rows.agg(lambda of_call: of_call.sum(skipna=False))
    called = pandas.Series([line["call"] for line in lines if "call" in line])
    by_case: dict[str, dict] = {}
    for case, calls in by_call.groupby(called):
        medians = calls.median(skipna=False)
        if len(calls) == CALLS and medians["dram_bytes"] > 0:
            by_case[case] = {}
            for field, count in medians.items():
                by_case[case][field] = None if pandas.isna(count) else round(count)
    return by_case


def check_copy(by_case: dict[str, dict], printed: str) -> float:
    """The counted bytes of the copy over those that it moved. Raises ValueError where that is not about 1."""
    if DENIED in printed:
        raise ValueError(NO_PERMISSION)
    if COPY not in by_case:
        lines = printed.strip().splitlines()
        errors = [line for line in lines if line.startswith("==ERROR==")]
        raise ValueError(f"nothing was counted: {(errors or lines)[-1]}")
    counted = by_case[COPY]["dram_bytes"] / COPY_BYTES
    if abs(counted - 1) > TOLERANCE:
        raise ValueError(
            f"of a copy's bytes {100 * counted:.1f} % were counted, which is off by more than {100 * TOLERANCE:g} %: "
            f"end what else reads counters, as DCGM; {LOG} in the run has what ncu printed"
        )
    return counted
