"""Nsight Compute on this machine: whether it may count, and a program run under it, which may fail or hang.

What is counted and what came out is `parse`'s to say. The tool replays each kernel, with the caches flushed before
every pass and the clocks left as they are: its times are no benchmark, and nothing is timed here.
"""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from glob import glob
from pathlib import Path

PLACES = ("/usr/local/cuda/bin/ncu", "/usr/local/cuda-*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
"""Where it is looked for beside PATH: NVIDIA's installers and packages put it there, the last one seldom on PATH."""

PARAMETERS, STATUS = Path("/proc/driver/nvidia/params"), Path("/proc/self/status")
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}
"""Either lets a process count where the driver restricts it to administrators; the second from driver 565 on
(developer.nvidia.com/ERR_NVGPUCTRPERM). Numbers: linux/capability.h."""

DENIED = "ERR_NVGPUCTRPERM"
FORBIDDEN = (
    f"this user may not read the GPU's counters ({DENIED}): it takes root, in a container --cap-add=SYS_ADMIN, or the "
    "driver's option NVreg_RestrictProfilingToAdminUsers=0"
)

LOCALE = {"LC_ALL": "C"}
"""Numbers are printed as the locale has them: 1.234,5 in some."""

QUERY_S = 60.0
LONGEST_COMPLAINT = 200
FOLLOWS = re.compile(r"an error was reported by|failed to profile|application returned|while trying to profile", re.I)
"""Errors that only say that there was another one."""


def complaint(printed: str, of_program: str, how: str) -> str:
    """Return the most telling line, for a person, of what the tool and the program `printed`; `how` is how they
    ended."""
    if DENIED in of_program + printed:
        return FORBIDDEN
    if how and not how.startswith("exit code"):
        return how
    lines = [line for line in f"{printed}\n{of_program}".splitlines() if line.strip()]
    errors = (line for line in lines if "==ERROR==" in line and not FOLLOWS.search(line))
    telling = next(errors, lines[-1] if lines else "it printed nothing").replace("==ERROR==", "").strip()
    shown = "".join(character if character.isprintable() else "?" for character in telling[:LONGEST_COMPLAINT])
    return f"{shown} ({how.partition(':')[0]})" if how else shown


def find() -> str | None:
    """Return the path of `ncu`, or None; of several versions that are not on PATH the newest."""
    places = [place for pattern in PLACES for place in sorted(glob(pattern), reverse=True)]
    return shutil.which("ncu") or next((place for place in places if os.access(place, os.X_OK)), None)


def why_not(device: str) -> str | None:
    """Return why nothing can be counted here, or None where it is worth a try. Takes no time: nothing is started."""
    if device != "cuda":
        return "they are a GPU's, and this run measured the CPU"
    if find() is None:
        return "ncu is not on PATH: install Nsight Compute, which comes with the CUDA toolkit"
    with suppress(OSError):
        capabilities = int(re.search(r"CapEff:\s*([0-9a-f]+)", STATUS.read_text())[1], 16)
        may = any(capabilities >> bit & 1 for bit in CAPABILITIES.values())
        if not may and re.search(r"RmProfilingAdminOnly:\s*1", PARAMETERS.read_text()):
            return FORBIDDEN
    return None


def ask(ncu: str, *question: str) -> str:
    """Return what `ncu` prints at `question`; nothing where it fails."""
    try:
        done = subprocess.run(
            [ncu, *question], capture_output=True, text=True, errors="replace", timeout=QUERY_S,
            env=os.environ | LOCALE, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def version(ncu: str) -> str:
    """Return its version, as in `2025.1.1.0`; `of unknown version` where it does not tell."""
    match = re.search(r"Version ([\d.]+)", ask(ncu, "--version"))
    return match[1] if match else "of unknown version"


def command(ncu: str, metrics: list[str], log: Path) -> list[str]:
    """Return what a program is run under: the tool counts between cudaProfilerStart and cudaProfilerStop, and prints to
    `log`."""
    return [
        *("env", *(f"{name}={value}" for name, value in LOCALE.items()), ncu),
        *("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "all"),
        *("--profile-from-start", "off", "--target-processes", "application-only"),
        *("--metrics", ",".join(metrics), "--log-file", str(log)),
    ]
