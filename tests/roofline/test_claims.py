"""What README and docs say of the committed runs is what `python -m results.claims` computes from them."""

from pathlib import Path

import pytest

from results import claims, foretold

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: f"{claim.figures.__name__}-{Path(claim.page).stem}")
def test_a_page_says_what_its_runs_say(claim):
    page = " ".join((ROOT / claim.page).read_text().split())
    assert claim.text() in page


def test_the_page_foretells_what_its_command_prints(capsys):
    assert foretold.main([]) == 0
    printed = capsys.readouterr().out.replace("\\", "").strip()
    assert printed in foretold.PAGE.read_text()
    assert foretold.main([str(foretold.RUN)]) == 0
    assert "P = 8, tp 16, `ridge`: hides 0.826, foretold 0.887" in capsys.readouterr().out
