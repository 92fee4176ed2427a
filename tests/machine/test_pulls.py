"""Ranks that pull from one another's memory, each on a device of the machine: exact in every order of events, and what
does not tell the other devices, or does not wait for them, is caught. In a process beside this one, as planted faults.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from cases import Case, run, whole_numbers
from links import on

from collectives import device_links
from collectives.device_group_links import SymmetricCopier
from collectives.device_links import PacedCopier, Route, copy_launch
from collectives.links import Transfer
from kernels.machine.run import address

RANKS, ROUNDS, ROWS, COLUMNS, SEEDS = 3, 2, 5, 24, 4
TOLD, HEARD = 'tl.int32)), 1, sem="release", scope="sys")', 'flag_ptr, 0, sem="acquire", scope="sys")'
MET = "    _wait(count_ptr, wanted, times_ptr, lost_ptr, number, patience, TIMED)\n"
# By mistake: what is replaced in the kernels' file, and by what, or which meeting is left out; and what is said of it.
CASES = {
    "as it is": ({}, None, "exact"),
    "told at the scope of a GPU": ({TOLD: TOLD.replace("sys", "gpu")}, None, "scopes does not reach"),
    "told without release": ({TOLD: TOLD.replace("release", "relaxed")}, None, "no order between"),
    "heard at the scope of a GPU": ({HEARD: HEARD.replace("sys", "gpu")}, None, "scopes does not reach"),
    "heard without acquire": ({HEARD: HEARD.replace("acquire", "relaxed")}, None, "no order between"),
    "not waited for": ({MET: ""}, None, "no order between"),
    "not met before": ({}, 0, "no order between"),
    "not met after": ({}, 1, "no order between"),
}


class Wire(SymmetricCopier):
    """Between devices of the machine, with its addresses: `counts` are those of all ranks."""

    device, left_out = "cpu", None

    def __init__(self, machine, rank: int, counts: list[torch.Tensor]):
        PacedCopier.__init__(self, None, rank, programs=2)
        self._machine, self._counts, self._start, self._met = machine, counts[rank], 0, [0, 0]
        others = [address(machine, count) for whose, count in enumerate(counts) if whose != rank]
        self._places = torch.tensor([[others, [at + 4 for at in others]]])

    def _run(self, launch) -> None:
        launch.run(self._times.device)

    def _prepared(self, transfers) -> Route:
        route = Route.of(transfers, "cpu", self.programs)
        ends = [[address(self._machine, end) for end in (one.source, one.target)] for one in transfers]
        route.table[:, :2] = torch.tensor(ends)
        return route

    def _meet(self, place: int) -> None:
        if place != self.left_out:
            super()._meet(place)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """By a kernel on the current stream."""
        route = self._prepared([Transfer(0, 0, source, target)])
        self._run(copy_launch(route, torch.zeros(1, dtype=torch.int64), 1e15))


def pulls(left_out: int | None) -> Case:
    """Each rank writes its own shard in each round, pulls those of the others, and puts aside what came."""

    def make(seed: int):
        x = whole_numbers(torch.empty(ROUNDS * RANKS * ROWS, COLUMNS, dtype=torch.float16), seed)
        x = x.view(ROUNDS, RANKS, ROWS, COLUMNS)
        found = torch.full((RANKS, *x.shape), torch.nan, dtype=x.dtype)
        own, counts, wires = torch.zeros_like(x[0]), [torch.zeros(1, 2, dtype=torch.int32) for _ in range(RANKS)], []

        def add(machine):
            for rank in range(RANKS):
                others = [(rank + step) % RANKS for step in range(1, RANKS)]
                gather = [Transfer(other, 0, own[other], torch.empty_like(own[other])) for other in others]
                with on(machine, rank, rank):
                    wires.append(wire := Wire(machine, rank, counts))
                    wire.left_out = left_out
                    for number in range(ROUNDS):
                        wire.copy(x[number, rank], own[rank])
                        wire.start(gather)
                        wire.wait(len(gather))
                        for one in gather:
                            wire.copy(one.target, found[rank, number, one.chunk])
                        wire.finish()

        def wrong() -> str:
            if any(int(wire._lost) for wire in wires):
                return "a rank was given up"
            right = [
                torch.equal(found[rank, :, other], x[:, other])
                for rank in range(RANKS)
                for other in range(RANKS)
                if other != rank
            ]
            return "" if all(right) else "what was pulled is wrong"

        return add, wrong

    return Case("pulls", f"left out: {left_out}", make)


def main() -> dict[str, list[str]]:
    found, text = {}, Path(device_links.copier.__file__).read_text()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (changes, left_out, _)) in enumerate(CASES.items()):
            path, changed = Path(folder, f"copier_{number}.py"), text
            for right, wrong in changes.items():
                assert right in changed
                changed = changed.replace(right, wrong)
            path.write_text(changed)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            device_links.copier = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(device_links.copier)
            seeds = range(SEEDS if name == "as it is" else 1)
            found[name] = [run(pulls(left_out), seed, budget=400_000).wrong or "exact" for seed in seeds]
    return found


@pytest.fixture(scope="module")
def found(printed_elsewhere) -> dict[str, list[str]]:
    return printed_elsewhere('import runpy; runpy.run_path("tests/machine/test_pulls.py", run_name="__main__")')


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, (*_, said) in CASES.items()])
def test_pulls_of_ranks(name, said, found):
    assert all(said in one for one in found[name]), found[name]


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
