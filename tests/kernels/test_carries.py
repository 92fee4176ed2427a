"""Whether compiled loops carry what they change: every loop of every kernel, and one that does not. On a machine that
runs the source as Python, as the interpreter does, nothing of it can be seen."""

import pytest


@pytest.fixture(scope="module")
def found(printed_elsewhere) -> dict:
    return printed_elsewhere('import runpy; runpy.run_path("tests/kernels/carries.py", run_name="__main__")')


def test_loops_of_all_kernels_are_looked_at(found):
    assert sorted(found["loops"]) == sorted(found["lost"]), "have tests/kernels/carries.py compile what has the loop"


def test_no_name_is_lost_but_the_planted_one(found):
    lost = {loop: names for loop, names in found["lost"].items() if names}
    planted = found["loops"][0]
    assert lost == {planted: ["a"]}, "compute such a name from one that is carried"
