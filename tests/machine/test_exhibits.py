"""What was published as wrong is found to be, and what mends it is exact: exhibits/."""

import pytest
from exhibits import EXHIBITS
from exhibits.exhibit import SEEDS

QUICK = (
    "lock",
    "bytes_alone",
    "stored_by_tma",
    "operand_reused",
    "cluster_exit",
    "wait_of_two",
    "flag_behind_bulk_store",
)


def problems(name: str, seeds: int, printed_elsewhere) -> list[str]:
    return printed_elsewhere(
        f"import json; from exhibits import EXHIBITS; print(json.dumps(EXHIBITS[{name!r}].problems({seeds})))"
    )


@pytest.mark.parametrize("name", QUICK)
def test_an_exhibit_is_found_and_its_mended_twin_exact(name, printed_elsewhere):
    assert problems(name, 2, printed_elsewhere) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_every_exhibit_is_found_and_its_mended_twin_exact(name, printed_elsewhere):
    assert problems(name, SEEDS, printed_elsewhere) == []
