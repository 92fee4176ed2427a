"""Compare this checkout with another by runs of both: `make against BASE=CHECKOUT N=3 ARGS=...`.

Each side has N runs by its own code and this Python, in turns A B B A, so that what drifts evenly meets both alike.
Then `roofline compare` says what became slower, and its exit code is that of this command: 1 where a case is SLOWER, 2
for bad input.
"""

import math
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from roofline.analysis.changes import BETWEEN_RUNS, KNOWN
from roofline.analysis.verdicts import MARGIN, Change
from roofline.commands import cli
from roofline.report.format import error_text
from roofline.theory.words import duration
from roofline.worker import METHOD_VERSION

ROOT = Path(__file__).resolve().parents[1]
BASE, NEW = "base", "new"
UNITS_S = {"min": 60, "s": 1}


def require_other(base: Path) -> None:
    """Raise ValueError unless `base` is another checkout, whose numbers can be compared with this one's."""
    way_out = "git worktree add ../base main makes one"
    worker = base / "roofline" / "worker" / "__init__.py"
    if not worker.is_file():
        raise ValueError(f"BASE={base} is no checkout of roofline-ffn: {way_out}")
    if base.resolve() == ROOT:
        raise ValueError(f"BASE={base} is this checkout itself: give another; {way_out}")
    if f"METHOD_VERSION = {METHOD_VERSION}\n" not in worker.read_text():
        raise ValueError(f"BASE={base} measures by another method than this checkout, {METHOD_VERSION}: take one of it")


def benchmark(checkout: Path, *words: str, **settings) -> subprocess.CompletedProcess:
    """Run the benchmarks of `checkout` by its own code: `python -m` puts the folder first on the path, and conftest.py
    refuses packages from elsewhere."""
    environment = dict(os.environ)
    if checkout != ROOT:
        environment.pop("ROOFLINE_COMMIT", None)  # it names this one's
    command = [sys.executable, "-m", "pytest", "--benchmark-only", *words]
    return subprocess.run(command, cwd=checkout, env=environment, text=True, check=False, **settings)


def plan(runs: int, words: list[str]) -> str:
    """What each of the `runs` measures, and how long all take. Raises ValueError where pytest collects nothing."""
    asked = benchmark(ROOT, "--collect-only", "-q", *words, capture_output=True)
    lines = (asked.stdout + asked.stderr).strip().splitlines()
    if asked.returncode:
        raise ValueError(f"nothing can be measured: {lines[-1]}")
    of_run = next(line for line in lines if " cases on " in line)
    seconds = sum(int(number) * UNITS_S[unit] for number, unit in re.findall(r"(\d+) (min|s)\b", of_run))
    return f"{runs} runs by turns, each of {of_run}: about {duration(runs * seconds)} in all"


def sight(count: int) -> str:
    """Which change `count` runs a side can see."""
    change = Change(0.0, BETWEEN_RUNS * math.sqrt(2 / count), KNOWN + 2 * (count - 1))
    return (
        f"{count} a side have a standard error of {error_text(change.error)} on an idle machine, quick ones more: "
        f"a change below {error_text(change.resolution)} would not be seen in a single case; "
        f"SLOWER takes {100 * MARGIN:g} %"
    )


def measure(base: Path, count: int, words: list[str], into: Path) -> dict[str, list[str]]:
    """The folders of `count` runs of each side, made by turns. Raises ValueError where a run does not end well."""
    order = [BASE, NEW, NEW, BASE] * count
    for number, side in enumerate(order[: 2 * count], 1):
        print(f"\nrun {number} of {2 * count}: {side}", flush=True)
        code = benchmark(base if side == BASE else ROOT, *words, f"--ffn-results={into / side}").returncode
        if code:
            raise ValueError(f"run {number}, of {side}, ended with exit code {code}, see above: nothing is compared")
    return {side: sorted(map(str, (into / side).iterdir())) for side in (BASE, NEW)}


def main(arguments: list[str]) -> int:
    """Compare with the checkout BASE by N runs a side, as `arguments` begin; the further ones are pytest's."""
    base, number, *words = arguments
    try:
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(f"N={number} is no count of runs a side: give a whole number from 1 on")
        count = int(number)
        require_other(Path(base))
        print(plan(2 * count, words))
        print(sight(count))
        into = ROOT / "results" / "local" / "against" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        folders = measure(Path(base), count, words, into)
    except (ValueError, OSError) as error:
        print(f"make against: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return cli.main(["compare", *folders[BASE], "--new", *folders[NEW]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
