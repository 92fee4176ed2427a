"""What was published as wrong is found to be, and what mends it is exact: exhibits/."""

import re
from pathlib import Path

import pytest

from kernels.machine.verdict import Verdict

from .exhibits import EXHIBITS, FAMILIES
from .exhibits.exhibit import SEEDS, outcome

PAGE = Path(__file__).parent / "exhibits" / "README.md"
HUGE = "wrapped_offset"  # takes gigabytes


def problems(names: list[str], seeds: int) -> list[str]:
    return [text for name in names for text in EXHIBITS[name].problems(seeds)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.rpartition(".")[2])
def test_exhibits_are_found_and_their_mended_twins_exact(family, elsewhere):
    names = [exhibit.name for exhibit in family.EXHIBITS if exhibit.name != HUGE]
    assert elsewhere(problems, names, 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_every_order_of_events_tells_an_exhibit_from_its_mended_twin(name, elsewhere):
    assert elsewhere(problems, [name], SEEDS) == []


OUTCOMES = {
    ("second_reader", False, "race hang"): (True, "found"),
    ("second_reader", False, "race exact"): (True, "found in some orders"),
    ("second_reader", False, "exact exact"): (True, "exact"),
    ("second_reader", False, "race unknown"): (True, "unknown"),
    ("second_reader", True, "exact race"): (False, "found in some orders"),
    ("packed_add", False, "exact exact"): (False, "exact"),
}


@pytest.mark.parametrize("case", OUTCOMES, ids=str)
def test_the_matrix_counts_a_verdict_where_it_belongs(case):
    name, mended, kinds = case
    verdicts = [Verdict(kind, "", 0, 0, 0.0) for kind in kinds.split()]
    assert outcome(EXHIBITS[name], mended, verdicts) == OUTCOMES[case]


def test_the_page_has_a_row_of_each_exhibit():
    rows = dict(re.findall(r"^\| (\w+) \| ([^|]+) \|", PAGE.read_text().partition("\n| exhibit")[2], re.MULTILINE))
    assert rows == {name: exhibit.source for name, exhibit in EXHIBITS.items()}
