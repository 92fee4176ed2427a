"""What `kernels.matmul` would have taken in committed runs, which do not journal it, and what had been tuned for them.

    python -m results.rule [RUN...]     of each run its table by M, with both; of README's and of the one behind it

The fastest of several contenders is known once all were measured. Who calls `kernels.matmul` gets what its rule takes,
and that is the rule of the commit that the run names: `RULES` has those. Later runs journal both.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import roofline
from roofline.report import tables
from roofline.report.throughput import tokens_table
from roofline.store.run import Run

REFERENCE = Path(__file__).parent / "reference"
OF_README = [REFERENCE / f"nvidia-h100-80gb-hbm3-2026-11-26-{number}" for number in (4, 5)]

UP, DOWN, UP_TP8, DOWN_TP8 = (53248, 16384), (16384, 53248), (6656, 16384), (16384, 6656)
"""n and k of the layers of `xxl`, at tp 1 and 8."""


@dataclass(frozen=True)
class Rule:
    """kernels/__init__.py of a commit, for 16 bits on a Hopper where TMA takes all operands: then each contender that
    it asks for can run."""

    warpgroup_from_m: int | None
    """Rows from which it takes `warpgroup`; None: it does not ask for it."""
    tuned: frozenset[tuple] = frozenset()
    """(contender, m, n, k) of the measured entries of kernels/configs/sm90.json. A trial on such a card chose each, on
    that very shape."""

    def contender(self, m: int) -> str:
        """What it takes for m rows of x. `decode` takes no more than 64."""
        if m <= 64:
            return "decode"
        is_large = self.warpgroup_from_m is not None and m >= self.warpgroup_from_m
        return "warpgroup" if is_large else "persistent"


DECODE_OR_PERSISTENT = Rule(warpgroup_from_m=None)
RULES = {
    "3e49a48": DECODE_OR_PERSISTENT,
    "aed2dcd": DECODE_OR_PERSISTENT,
    "b6d7b37e": Rule(
        warpgroup_from_m=256,
        tuned=frozenset(
            [
                *(("warpgroup", 8192, *layer) for layer in (UP_TP8, DOWN_TP8, DOWN)),
                *(("warpgroup", 4096, *layer) for layer in (UP_TP8, DOWN_TP8)),
                ("warpgroup", 1024, *UP),
                ("warpgroup", 512, *UP_TP8),
                *(("warpgroup", 128, *layer) for layer in (DOWN_TP8, DOWN)),
                ("decode", 64, *UP_TP8),
            ]
        ),
    ),
}
"""Commit -> its rule: `git show COMMIT:kernels/__init__.py` and `git show COMMIT:kernels/configs/sm90.json`."""


def rule_of(run: Run) -> Rule:
    """The rule of the commit that `run` names. Raises ValueError for another commit."""
    commit = run.metadata["commit"]
    for known, rule in RULES.items():
        if commit.startswith(known):
            return rule
    raise ValueError(f"no rule of commit {commit} is known: add that of its kernels/__init__.py to RULES")


def load(folder: Path) -> Run:
    """The run in `folder`, whose matmuls also have what the rule says. Raises ValueError as `apply` does."""
    run = roofline.load(folder)
    apply(run)
    return run


def apply(run: Run) -> None:
    """Give the matmuls of `run` the facts `dispatched` and, of each contender, `tuned`. Raises ValueError for a run
    that has no matmuls in bf16 on a GPU, and for one of another commit."""
    matmuls = [shape for shape in run.shapes.values() if (shape.op, shape.dtype) == ("matmul", "bf16")]
    if not matmuls or run.metadata["machine"]["source"] != "gpu":
        title = run.metadata["title"]
        raise ValueError(f"{title}: it has no matmuls in bf16 on a GPU, for which kernels.matmul has no rule here")
    rule = rule_of(run)
    for shape in matmuls:
        m = shape.params["m"]
        shape.facts["dispatched"] = rule.contender(m)
        for name, entrant in shape.entrants.items():
            entrant["tuned"] = (name, m, shape.get("n"), shape.get("k")) in rule.tuned
    run.derived.clear()


def main(folders: list[str]) -> int:
    """Print the table by M of each run. Returns the exit code (0 done, 2 bad input)."""
    try:
        for folder in map(Path, folders or OF_README):
            run = load(folder)
            print(f"{folder.name}, by the rule of {run.metadata['commit']}\n")
            print(tables.markdown(tokens_table(roofline.by_tokens(run))), end="\n\n")
    except (ValueError, OSError) as error:
        print(f"results/rule.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
