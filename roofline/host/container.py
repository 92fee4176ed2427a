"""The cores and the memory of its machine that a container, or a limit, leaves this process.

A control group of Linux has the limits of its parents, too. In version 1 each kind has groups of its own.
"""

import functools
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def settle() -> None:
    """Let this process and those that it begins do without a home folder that can be written, and a standard output."""
    if os.path.expanduser("~") == "~":  # nor has its user an entry
        os.environ["HOME"] = "/nonexistent"
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ.setdefault("TRITON_HOME", tempfile.gettempdir())
        os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 for as long as it lives


def affinity() -> int:
    """Cores that this process may run on at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Cores that it may use all the time, as quotas allow: whole ones, at least one."""
    counts = [affinity()]
    for group in _groups("cpu"):
        version_1 = f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
        quota, _, period = (_text(group / "cpu.max") or version_1).partition(" ")
        if quota.isdecimal():
            counts.append(int(quota) // int(period))
    return max(1, min(counts))


def threads() -> dict[str, str]:
    """The variable by which libraries run as many threads as a quota has cores; they look at the affinity."""
    count = cores()
    return {"OMP_NUM_THREADS": str(count)} if count < affinity() else {}


@functools.cache
def memory_bytes() -> int:
    """The memory of the machine, or what this process may have of it, as it began."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in _groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _text(group / name)
            if limit.isdecimal():
                sizes.append(int(limit))
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    data, _ = resource.getrlimit(resource.RLIMIT_DATA)
    for size in (addresses // 2, data):  # code and stacks take addresses, too
        if size > 0:
            sizes.append(size)
    return min(sizes)


@functools.cache
def worker_bytes() -> int:
    """The memory of a worker on a CPU, as far as it was free as the process began."""
    available = re.search(r"MemAvailable:\s+(\d+)", _text(PROC / "meminfo"))
    return min(memory_bytes(), 1024 * int(available[1])) if available else memory_bytes()


def _groups(kind: str) -> Iterator[Path]:
    """Yield the control group that limits this process, and its parents."""
    for line in _text(PROC / "self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds or kind in kinds.split(","):
            group = GROUPS / kinds / path.lstrip("/")
            yield from (group, *group.parents)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
