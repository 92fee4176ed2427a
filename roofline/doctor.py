"""`roofline doctor`: what this machine has of what a benchmark run needs, what a lack costs, and the way out.

Each check asks by the calls that the run itself makes, so that it fails as the run would. Nothing is measured, nothing
is changed, and no check costs another its answer.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from roofline.measure import machine, telemetry
from roofline.measure.device_errors import reason
from roofline.measure.metadata import commit_of
from roofline.profile import ncu

OK, LIMITED, LACKING = "ok", "limited", "lacking"
"""Of a finding. `limited`: something that one may ask for fails. `lacking`: the default run would not be whole."""

ROOT = Path(__file__).parents[1]
SCHEMA = 1

RESULTS_BYTES = 10**9
"""Of a run folder: two dozen MB, with room for what else is written meanwhile."""

HEADERS = "#include <Python.h>\nPyMODINIT_FUNC PyInit_roofline_doctor(void) { return 0; }\n"
"""What Triton asks of a compiler for each kernel that it loads: a module of C for Python."""


@dataclass(frozen=True)
class Finding:
    """What a check found: in words, with what a lack costs and the way out of it."""

    about: str
    state: str
    found: str
    costs: str = ""
    way_out: str = ""

    @property
    def is_of_any_run(self) -> bool:
        """Return whether it is a lack of the machine, and not of the default run alone."""
        return self.state != OK and self.about != "results"

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.about}: {self.found}", self.costs, self.way_out)))


Check = Callable[[], Finding]


def run(as_json: bool = False) -> int:
    """Print the findings; returns 0 where the default run would be whole, else 1."""
    findings = examine()
    whole = all(finding.state != LACKING for finding in findings)
    if as_json:
        print(
            json.dumps(
                {"schema": SCHEMA, "whole": whole, "findings": [asdict(finding) for finding in findings]}, indent=2
            )
        )
        return int(not whole)
    for finding in findings:
        print(f"{finding.state:<8} {finding.about:<12} {finding.found}")
        for more in filter(None, (finding.costs, finding.way_out)):
            print(f"{'':<21} {more}")
    print("the default run would be whole here" if whole else "the default run would not be whole here")
    return int(not whole)


def of_any_run() -> list[str]:
    """Return the findings that any run meets, in words. Another process looks: this one keeps off the device."""
    command = [sys.executable, "-m", "roofline", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        findings = [Finding(**fields) for fields in json.loads(done.stdout)["findings"]]
    except ValueError:
        return [f"{' '.join(command[1:])} ended with exit code {done.returncode}"]
    return [str(finding) for finding in findings if finding.is_of_any_run]


def examine() -> list[Finding]:
    """Return all findings of this machine, in the order in which one mends them."""
    findings = [_asked(check) for check in (_packages, _device)]
    if any(finding.state == LACKING for finding in findings):
        return findings  # all else would fail for the same reason
    of_device = GPU if machine.choose_device("auto", timed=True) == "cuda" else CPU
    return [*findings, *map(_asked, (*of_device, _results, _commit))]


def _asked(check: Check) -> Finding:
    """Return what `check` finds; where it raises, that is what was found."""
    try:
        return check()
    except Exception as error:
        return Finding(check.__name__.strip("_"), LACKING, reason(error), "what that costs a run is not known")


def _packages() -> Finding:
    """Return what pyproject.toml asks for, where this is a checkout; else what was installed with `roofline`."""
    from packaging.requirements import Requirement

    if (ROOT / "pyproject.toml").is_file():
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        asked = [*project["dependencies"], *project["optional-dependencies"]["bench"]]
    else:
        asked = metadata.requires("roofline-ffn") or []
    environment = {"extra": "bench"}
    wrong, installed = [], {}
    for wanted in map(Requirement, asked):
        if wanted.marker and not wanted.marker.evaluate(environment):
            continue
        try:
            installed[wanted.name] = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"no {wanted}")
            continue
        if not wanted.specifier.contains(installed[wanted.name], prereleases=True):
            wrong.append(f"{wanted.name} {installed[wanted.name]}, asked for is {wanted.specifier}")
    if wrong:
        way_out = 'pip install -e ".[bench]", or make bench, which sets up an environment of its own'
        return Finding("packages", LACKING, ", ".join(wrong), "nothing can be relied upon without them", way_out)
    named = [f"{name} {installed[name]}" for name in ("torch", "triton", "pytest-benchmark") if name in installed]
    return Finding("packages", OK, ", ".join(named))


def _device() -> Finding:
    """Return which device a run would measure, and whether it answers."""
    try:
        device = machine.choose_device("auto", timed=True)
    except ValueError as error:
        return Finding("device", LACKING, str(error), "nothing is measured")
    if device == "cuda" and (problem := machine.unusable_gpu()):
        return Finding("device", LACKING, problem, "nothing is measured")
    about = machine.describe(device)
    if device == "cpu":
        return Finding("device", OK, f"no NVIDIA GPU; a run measures the CPU, {about['chip']}")
    import torch

    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        problem = str(error).splitlines()[0]
        return Finding(
            "device", LACKING, f"{about['chip']}: {problem}", "nothing is measured", machine.way_out(problem)
        )
    capability = about["compute_capability"]
    described = (
        f"{about['chip']}, {about['sms']} SMs, compute capability {capability}; driver {about['driver']}, torch for "
        f"CUDA {about['cuda']}"
    )
    if float(capability) < 8:
        return Finding("device", LACKING, described, "below 8.0 there is no bf16", "take an A100 or newer")
    if not capability.startswith("9."):
        return Finding("device", OK, f"{described}; what is made for Hopper is left out, and its rows say so")
    return Finding("device", OK, described)


def _compiler() -> Finding:
    from triton import knobs
    from triton.runtime.build import compile_module_from_src

    try:
        with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
            knobs.cache.dir = folder  # else it may answer from what was compiled before
            with suppress(ImportError, SystemError):  # an empty module loads no further: compiling it is what counts
                compile_module_from_src(HEADERS, "roofline_doctor")
    except Exception as error:  # CalledProcessError, RuntimeError, OSError
        return Finding(
            "compiler", LACKING, f"Triton cannot compile a module for Python: {reason(error)}",
            "our kernels, the gathers and the SM clock are left out",
            "install a C compiler and Python's headers (gcc, python3-dev)",
        )  # fmt: skip
    return Finding("compiler", OK, f"{os.environ.get('CC') or shutil.which('gcc') or shutil.which('clang')}, Python.h")


def _cache() -> Finding:
    from triton import knobs

    folder = Path(knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "cache", LACKING, f"Triton's cache {folder} cannot be written: {error.strerror}", "no kernel of ours runs",
            "set TRITON_CACHE_DIR to a folder that can be written",
        )  # fmt: skip
    return Finding("cache", OK, f"Triton's is {folder}")


def _nvml() -> Finding:
    readings = telemetry.GpuTelemetry()
    readings.read()
    summary = readings.summary()
    if error := summary.get("telemetry_error"):
        costs = "clock, power and throttling are unknown, and a throttled row is not marked"
        return Finding("nvml", LACKING, error, costs, machine.way_out(error) or "pip install nvidia-ml-py")
    blind = [name for name in ("sm_clock_mhz", "power_w", "temperature_c", "throttled") if summary[name] is None]
    if blind:
        return Finding("nvml", LIMITED, f"it does not tell {', '.join(blind)}", "these columns stay empty")
    return Finding(
        "nvml", OK, f"{summary['sm_clock_mhz']:.0f} MHz, {summary['power_w']:.0f} W, {summary['temperature_c']} C"
    )


def _mode() -> Finding:
    nvml, handle = telemetry.nvml_handle()
    mig, mode = (_told(nvml, name, handle) for name in ("nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode"))
    if mig and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE:
        return Finding(
            "mode", LACKING, "MIG is on", "a slice of the card is measured, and no datasheet fits it",
            "have an administrator switch it off: nvidia-smi -mig 0",
        )  # fmt: skip
    if mode is None:
        return Finding("mode", LIMITED, "NVML does not tell it", "kernels may fail to be tried beside a run")
    if mode == nvml.NVML_COMPUTEMODE_DEFAULT:
        return Finding("mode", OK, "no MIG, several processes may use the card")
    return Finding(
        "mode", LACKING, "only one process may use the card", "neither kernels can be tried nor counters read beside a "
        "run", "have an administrator set the default mode: nvidia-smi -c 0",
    )  # fmt: skip


def _told(nvml, question: str, handle):
    """Return what NVML answers; None where it does not know it here, as in some containers and of older cards."""
    try:
        return getattr(nvml, question)(handle)
    except nvml.NVMLError:
        return None


def _others() -> Finding:
    import torch

    nvml, handle = telemetry.nvml_handle()
    processes = _told(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    if processes is None:
        return Finding("others", LIMITED, "NVML does not tell", "somebody else's work may disturb what is measured")
    # In a container NVML tells the host's numbers of processes, among which the own one is not to be known.
    this_process = next(
        (process for process in processes if process.pid == os.getpid()), processes[0] if processes else None
    )
    others = [process for process in processes if process is not this_process or not torch.cuda.is_initialized()]
    if not others:
        return Finding("others", OK, "no other process is on the card")
    held = sum(process.usedGpuMemory or 0 for process in others) / 2**30
    costs = "they take clocks, bandwidth and memory from what is measured"
    text = f"{len(others)} other processes on the card hold {held:.1f} GiB"
    return Finding("others", LIMITED, text, costs, "end them, or come back later")


def _counters() -> Finding:
    if why := ncu.why_not("cuda"):
        return Finding("counters", LIMITED, why, "--ffn-counters reads nothing")
    return Finding("counters", OK, f"Nsight Compute {ncu.version(ncu.find())}")


def _bindings() -> Finding:
    try:
        return Finding("bindings", OK, f"cuda-bindings {metadata.version('cuda-bindings')}")
    except metadata.PackageNotFoundError:
        costs = "the links nccl and symmetric are skipped"
        return Finding("bindings", LIMITED, "no cuda-bindings", costs, "pip install cuda-bindings")


def _peers() -> Finding:
    import torch

    count = torch.cuda.device_count()
    if count == 1:
        return Finding("peers", OK, "one GPU; wires are emulated, as by default")
    reach = torch.cuda.can_device_access_peer
    apart = [index for index in range(1, count) if not (reach(0, index) and machine.native_atomics(0, index))]
    if apart:
        text = f"{count} GPUs, and GPU 0 does not reach {', '.join(map(str, apart))} with atomics"
        return Finding("peers", LIMITED, text, "real ranks take the link nccl alone, not symmetric")
    return Finding("peers", OK, f"{count} GPUs that reach one another")


def _cores() -> Finding:
    if (cores := machine.cores()) > 1:
        return Finding("cores", OK, f"{cores}; an emulated link takes one of them")
    costs = "an emulated link takes the core of the matmul, and nothing overlaps"
    return Finding(
        "cores", LACKING, "one core", costs, "give it two, or leave the gathers out: tests/benchmarks/test_matmul.py"
    )


def _results() -> Finding:
    folder = ROOT / "results" / "local"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK):
        return Finding("results", LACKING, f"{there} cannot be written", "a run is refused", "choose --ffn-results=DIR")
    free = shutil.disk_usage(there).free
    text = f"{there}: {free / 1e9:.3g} GB free"
    if free >= RESULTS_BYTES:
        return Finding("results", OK, text)
    return Finding("results", LACKING, text, "a run may be cut off", "make room, or choose --ffn-results=DIR")


def _commit() -> Finding:
    commit = commit_of(ROOT)
    if commit == "unknown":
        costs, way_out = "the run cannot become a reference", "set ROOFLINE_COMMIT to the commit of these files"
        return Finding("commit", LIMITED, "not known: this is no git checkout", costs, way_out)
    if commit.endswith("+dirty"):
        return Finding("commit", LIMITED, commit, "the run cannot become a reference", "commit, or undo, what changed")
    return Finding("commit", OK, commit)


GPU: tuple[Check, ...] = (_compiler, _cache, _nvml, _mode, _others, _counters, _bindings, _peers)
CPU: tuple[Check, ...] = (_cores,)
