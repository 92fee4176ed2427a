"""A sample of mutants is caught; a machine that looks less well misses some; and the page's table fits together."""

import re

from test_shipped import ROOT, machine

CELL = re.compile(r"(?P<caught>\d+)(?: \+ (?P<harmless>\d+))?")
NAMES = "import json; from kernels.machine import mutants; print(json.dumps(list(mutants.subjects())))"
FENCES = """
import json
from unittest.mock import patch
from kernels.machine import mutants, order
every = mutants.mutants
mutants.mutants = lambda *where: (one for one in every(*where) if one.inst.op.startswith("fence"))
def missed():
    found = list(mutants.judged("persistent", mutants.subjects()["persistent"]))
    return [one.what for one in found if not one.wrong and not one.reason]
seen = missed()
with patch.object(order.Ledger, "unordered", lambda *args: None):
    print(json.dumps([seen, missed()]))
"""


def cells(row: str) -> list[tuple[int, int]]:
    """(caught, harmless) of each column."""
    texts = [text.strip() for text in row.strip("| \n").split("|")][1:]
    assert all(not text or CELL.fullmatch(text) for text in texts), f"{row}: some are missed"
    return [
        (int(found["caught"]), int(found["harmless"] or 0)) if (found := CELL.match(text)) else (0, 0) for text in texts
    ]


def total(some: list[tuple[int, int]]) -> tuple[int, int]:
    return tuple(map(sum, zip(*some, strict=True)))


def test_a_sample_is_caught():
    done = machine("--mutants", "gate", "tiled", "decode", "flagged", "--sample", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split(": ") for line in done.stdout.splitlines() if re.fullmatch(r"[a-z]+: [\d+ ]+", line))
    assert set(found) == {"gate", "tiled", "decode", "flagged"}
    assert all(int(CELL.match(text)["caught"]) >= 2 for text in found.values()), found


def test_what_the_machine_does_not_look_for_is_missed(printed_elsewhere):
    assert printed_elsewhere(FENCES) == [[], ["removed", "of the other space"]]


def test_the_table_of_the_docs_has_all_kernels_and_adds_up(printed_elsewhere):
    names = printed_elsewhere(
        "import json\nfrom kernels.machine import mutants\nprint(json.dumps(list(mutants.subjects())))"
    )
    page = (ROOT / "docs/machine.md").read_text()
    _, _, *rows = re.search(r"--table -->\n\n(.*?)\n\n", page, re.DOTALL)[1].splitlines()
    by_kernel = {row.split("|")[1].strip(): cells(row) for row in rows}
    assert list(by_kernel) == [*names, "all"]
    for *parts, whole in by_kernel.values():
        assert total(parts) == whole
    everything = by_kernel.pop("all")
    assert [total(column) for column in zip(*by_kernel.values(), strict=True)] == everything
    reasons = [int(n) for n in re.findall(r"^\| (\d+) \| [a-z]", page, re.MULTILINE)]
    assert sum(reasons) == everything[-1][1]
