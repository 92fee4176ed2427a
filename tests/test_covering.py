"""`make test FOR=PATH` runs the tests of a file, and few others."""

import pytest

from tests import covering

EXAMPLES = [  # a file; tests that are run for it, and some that are not
    ("kernels/tiled.py", "kernels/test_matmul machine/test_shipped", "roofline/test_account roofline/test_compare"),
    ("kernels/configs/sm90.json", "kernels/test_tiles", "roofline/test_account"),
    ("collectives/engines.py", "collectives/test_engines machine/test_planted", "kernels/test_tiles"),
    ("roofline/worker/rounds.py", "roofline/test_steady roofline/test_faults", "machine/test_perturb"),
    ("roofline/report/tables.toml", "roofline/test_report roofline/test_plugin", "kernels/test_tiles"),
    ("results/visit.py", "roofline/test_visit", "roofline/test_report"),
    ("docs/kernel.md", "roofline/test_documents", "roofline/test_clocks"),
    ("docs/your-kernel.md", "machine/test_users_kernel", "roofline/test_clocks"),
    ("tests/roofline/stand_in.py", "roofline/test_rehearsal collectives/test_loads", "kernels/test_tiles"),
    (".ci/slow", "test_ci", "roofline/test_clocks"),
]


@pytest.mark.parametrize(("path", "covering_it", "others"), EXAMPLES, ids=[path for path, *_ in EXAMPLES])
def test_a_file_has_its_tests(path, covering_it, others):
    tests = covering.tests_for(path)
    assert {f"tests/{name}.py" for name in covering_it.split()} <= {*tests}
    assert not {f"tests/{name}.py" for name in others.split()} & {*tests}


def test_each_module_and_each_file_of_data_has_some():
    product = [name for name in covering.files() if name.startswith(("kernels/", "collectives/", "roofline/"))]
    without = []
    for name in product:
        is_looked_at = name.endswith((".py", ".toml", ".json")) and "/tests/" not in name
        if is_looked_at and not name.endswith("__init__.py"):
            try:
                covering.tests_for(name)
            except ValueError:
                without.append(name)
    assert without == []


def test_what_is_no_file_is_refused(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        covering.main(["kernels/tilde.py"])
    assert "kernels/tilde.py is no file of this checkout that is committed; name one" in capsys.readouterr().err
