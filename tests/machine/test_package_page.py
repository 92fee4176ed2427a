"""The page of the machine's package: what `make test` runs of the package's own tests, kernels/machine/tests."""


def test_the_page_shows_what_its_examples_print(printed_elsewhere):
    code = "import json; from kernels.machine.tests import page; print(json.dumps(page.differences('kernels.machine')))"
    assert printed_elsewhere(code) == []
