"""What README and docs say of the committed runs is what `python -m results.claims` computes from them."""

from pathlib import Path

import pytest

from results import claims

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: f"{claim.figures.__name__}-{Path(claim.page).stem}")
def test_a_page_says_what_its_runs_say(claim):
    page = " ".join((ROOT / claim.page).read_text().split())
    assert claim.text() in page
