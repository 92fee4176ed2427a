"""`roofline counters RUN [CASE...]`: what a call of a run's cases moves and multiplies, by Nsight Compute.

One call of `ncu` counts `commands.launcher`, which makes a copy of known size, and then calls each case three times.
Counts are lines of the run's journal. Nothing is timed: ncu replays each kernel, and flushes the caches before it.

ncu is called without nsight-python, which takes an ncu of CUDA 13.3 and five packages more, and saves its command and
the reading of its table. Launcher, copy and journal would be ours with it too.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from contextlib import closing, nullcontext
from functools import partial
from io import StringIO
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from roofline.commands.launcher import CALLS, COPY
from roofline.host.machine import anonymous
from roofline.report.format import bytes_text, number_text
from roofline.store import journal
from roofline.store.run import Run, Shape
from roofline.theory.words import nearest

LOG = "ncu.log"
"""In the run's folder: what ncu printed the last time, from which any number can be read again."""
SHAPES = 4
"""So many shapes are counted where the command names no case."""
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
        printed, lines = launch(tool, folder, [*cases])
        counted = counts(printed, lines)
        copied = check_copy(counted, printed, lines)
        failures = {line["failed"]: line["reason"] for line in lines if "failed" in line}
        source = {"tool": "ncu", "version": version(tool), "cache": "flushed", "calls": CALLS, "metrics": METRICS}
        for case, (shape, contender) in cases.items():
            if case not in counted:
                failures.setdefault(case, f"not all of its calls were counted, {LOG} has what ncu printed")
                continue
            head = {"kind": "counters", "shape": shape.id, "contender": contender, "counter_source": source}
            file.write(head | counted[case])
            print(f"{case}: {summary(shape, counted[case]['dram_bytes'])}")
        text = (
            f"Counters: Nsight Compute {source['version']} counted {len(cases) - len(failures)} of {len(cases)} cases, "
            f"each the median of {CALLS} calls after the timed run, with the caches flushed before each kernel. Of a "
            f"copy's bytes it counted {100 * copied:.1f} %. What a kernel leaves in the L2 cache is written after its "
            "end: bytes of small outputs are missing"
        )
        for case, reason in failures.items():
            text += f"; {case}: {reason}"
        file.write({"kind": "note", "about": "counters", "text": f"{text}."})
    print(f"{text}.\n`roofline report {folder}` draws it")
    return int(bool(failures))


def summary(shape: Shape, moved_bytes: Any) -> str:
    """The bytes that a call moved, and its intensity beside the model's."""
    counted = number_text(shape.work.flop / moved_bytes)
    modelled = number_text(shape.work.device_intensity)
    return f"{bytes_text(moved_bytes)} of device memory, {counted} FLOP/byte counted, {modelled} modelled"


def chosen(run: Run, wanted: list[str]) -> dict[str, tuple[Shape, str]]:
    """The cases of `run` that the words of `wanted` name, or begin, by their ids; without a word some of its matmuls.

    Raises ValueError for a run of the CPU, and for a word that names none that can be counted. An arm cannot: its
    kernels wait for one another, and ncu replays them one by one."""
    if run.metadata["machine"]["source"] != "gpu":
        raise ValueError("this run measured the CPU: take a run of a GPU")
    cases = {}
    for shape, name in run.cases():
        if shape.analysis == "throughput":
            cases[f"{shape.id}-{name}"] = shape, name
    named = {}
    for word in wanted or by_default(run):
        matches = [word] if word in cases else [case for case in cases if case.startswith(word)]
        if not matches:
            near = nearest(word, cases) or "`roofline csv RUN` lists all cases, of which arms cannot be counted"
            raise ValueError(f"{word!r} begins no case that this run has measured and ncu can count; {near}".rstrip())
        for case in matches:
            named[case] = cases[case]
    return named


def by_default(run: Run) -> list[str]:
    """The baseline, and the fastest beside it, of matmuls from the least intensity to the greatest."""
    shapes = [shape for shape in run.shapes.values() if shape.op == "matmul" and shape.measured]
    if not shapes:
        raise ValueError("this run has measured no matmul: name a CASE, as `roofline csv RUN` prints them")
    shapes.sort(key=lambda shape: shape.work.device_intensity)
    cases = []
    for index in range(SHAPES):
        shape = shapes[round(index * (len(shapes) - 1) / (SHAPES - 1))]
        if shape.baseline in shape.measured:
            cases.append(f"{shape.id}-{shape.baseline}")
        if shape.rivals:
            fastest = min(shape.rivals, key=lambda name: shape.time(name) or (math.inf,))
            cases.append(f"{shape.id}-{fastest}")
    return cases


def launch(tool: str, folder: Path, cases: list[str]) -> tuple[str, list[dict]]:
    """Have `tool` count the launcher. Returns what both printed, and what the launcher told."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary, LOG)
        calls = Path(temporary, "calls")
        calls.touch()
        command = [
            *(tool, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
            *("--cache-control", "all", "--profile-from-start", "off", "--target-processes", "application-only"),
            *("--metrics", ",".join(sum(METRICS.values(), ())), "--log-file", str(log)),
            *(sys.executable, "-m", "roofline.commands.launcher", str(folder.resolve()), str(calls)),
            *cases,
        ]
        root = Path(__file__).parents[2]
        env = os.environ | {"LC_ALL": "C"}  # else some print 1.234,5
        done = subprocess.run(command, cwd=root, env=env, stdout=PIPE, stderr=STDOUT, errors="replace", check=False)
        logged = log.read_text(errors="replace") if log.exists() else ""
        printed = anonymous(f"{logged}\n{done.stdout}")
        lines = calls.read_text(errors="replace").splitlines()
    (folder / LOG).write_text(printed)
    return printed, [*map(json.loads, lines)]


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
    is_marker = table["Kernel Name"].isin(table["Kernel Name"][:1])
    numbers = is_marker.cumsum() - 1
    fields = {}
    for field, metrics in METRICS.items():
        counted = table.reindex(columns=metrics).apply(pandas.to_numeric, errors="coerce")
        fields[field] = counted.sum(axis=1, skipna=False)
    kernels = pandas.DataFrame(fields)[~is_marker]
    by_call = kernels.groupby(numbers).agg(partial(pandas.Series.sum, skipna=False))
    called = pandas.Series([line["call"] for line in lines if "call" in line])
    by_case = {}
    for case, calls in by_call.groupby(called):
        medians = calls.median(skipna=False)
        if len(calls) == CALLS and medians["dram_bytes"] > 0:
            by_case[case] = {field: None if pandas.isna(count) else round(count) for field, count in medians.items()}
    return by_case


def check_copy(by_case: dict[str, dict], printed: str, lines: list[dict]) -> float:
    """The counted bytes of the copy over those that it moved. Raises ValueError where that is not about 1."""
    if DENIED in printed:
        raise ValueError(NO_PERMISSION)
    if COPY not in by_case:
        errors = [line for line in printed.splitlines() if line.startswith("==ERROR==")]
        raise ValueError(f"nothing was counted: {' '.join([*errors, *printed.strip().splitlines()[-1:]])}")
    moved = lines[0]["bytes"]
    counted = by_case[COPY]["dram_bytes"]
    if abs(counted / moved - 1) > TOLERANCE:
        raise ValueError(
            f"a copy that moves {bytes_text(moved)} was counted as {bytes_text(counted)}, which is off by more than "
            f"{100 * TOLERANCE:g} %: end what else reads counters, as DCGM; {LOG} in the run has what ncu printed"
        )
    return counted / moved


def version(tool: str) -> str:
    printed = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Version ([\d.]+)", printed)
    return match[1] if match else "of unknown version"
