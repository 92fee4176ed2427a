"""Nsight Compute on this machine: whether it may count, and a program run under it, which may fail or hang.

What is counted and what came out is `parse`'s to say. The tool replays each kernel, with the caches flushed before
every pass and the clocks left as they are: its times are no benchmark, and nothing is timed here.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
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
ENDING_S = 5.0
"""How long a program may take to end when it is told to."""

LONGEST_COMPLAINT = 200
FOLLOWS = re.compile(r"an error was reported by|failed to profile|application returned|while trying to profile", re.I)
"""Errors that only say that there was another one."""
RAISED = re.compile(r"[\w.]+(Error|Exception)\b")
"""How the last line of a traceback begins."""

OVER = "its time was over"


@dataclass(frozen=True)
class Ended:
    """How a program ended: `printed` by the tool, `said` by the program, and `why` it was stopped, or None."""

    printed: str
    said: str
    code: int | None
    why: str | None

    @property
    def over(self) -> bool:
        """Whether it was stopped for its time alone."""
        return self.why == OVER

    @property
    def complaint(self) -> str:
        """The most telling line, for a person."""
        everything = f"{self.said}\n{self.printed}"
        if DENIED in everything:
            return FORBIDDEN
        if self.why:
            return self.why
        errors = [line.replace("==ERROR==", "").strip() for line in everything.splitlines() if "==ERROR==" in line]
        said, printed = ([line for line in text.splitlines() if line.strip()] for text in (self.said, self.printed))
        raised = [line for line in said if RAISED.match(line)]
        own = next((line for line in errors if not FOLLOWS.search(line)), None)
        told = own or next(iter([*raised[-1:], *errors, *said[-1:], *printed[-1:]]), "it said nothing")
        shown = "".join(character if character.isprintable() else "?" for character in told[:LONGEST_COMPLAINT])
        return f"{shown} (exit code {self.code})"


def find() -> str | None:
    """The path of `ncu`, or None; of several versions that are not on PATH the newest."""
    places = [place for pattern in PLACES for place in sorted(glob(pattern), reverse=True)]
    return shutil.which("ncu") or next((place for place in places if os.access(place, os.X_OK)), None)


def why_not(device: str) -> str | None:
    """Why nothing can be counted here, or None where it is worth a try. Takes no time: nothing is started."""
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
    """What `ncu` prints at `question`; nothing where it fails."""
    try:
        done = subprocess.run(
            [ncu, *question], capture_output=True, text=True, errors="replace", timeout=QUERY_S,
            env=os.environ | LOCALE, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def version(ncu: str) -> str:
    """Its version, as in `2025.1.1.0`; `of unknown version` where it does not tell."""
    found = re.search(r"Version ([\d.]+)", ask(ncu, "--version"))
    return found[1] if found else "of unknown version"


def run(
    ncu: str, metrics: list[str], command: list[str], *, folder: Path, progress: Path, cwd: Path, stall_s: float,
    seconds: float,
) -> Ended:  # fmt: skip
    """Run `command` under the tool, counting between cudaProfilerStart and cudaProfilerStop.

    It is ended, with all that it started, after `seconds`, or once the file `progress` has not grown for `stall_s`.
    `folder` takes what it prints.
    """
    log, said = folder / "ncu.log", folder / "said.txt"
    flags = [
        *("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "all"),
        *("--profile-from-start", "off", "--target-processes", "application-only"),
        *("--metrics", ",".join(metrics), "--log-file", str(log)),
    ]
    log.unlink(missing_ok=True)
    why, deadline = None, time.monotonic() + seconds
    with said.open("wb") as output:
        process = subprocess.Popen(
            [ncu, *flags, *command], cwd=cwd, env=os.environ | LOCALE, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            why = _wait(process, progress, stall_s, deadline)
        finally:
            _end(process)
    printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Ended(printed, said.read_text(encoding="utf-8", errors="replace"), process.returncode, why)


def _wait(process: subprocess.Popen, progress: Path, stall_s: float, deadline: float) -> str | None:
    """Wait for the end of `process`; returns why it must be stopped, or None."""
    moved, size = time.monotonic(), -1
    while process.poll() is None:
        now = time.monotonic()
        grown = progress.stat().st_size if progress.exists() else 0
        if grown != size:
            moved, size = now, grown
        if now > deadline:
            return OVER
        if now - moved > stall_s:
            return f"it hung: nothing happened for {stall_s:g} s"
        time.sleep(0.1)
    return None


def _end(process: subprocess.Popen) -> None:
    """End the group of processes that `process` began, whether or not it has ended itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
