"""The page of the machine's package: what `make test` runs of the package's own tests, kernels/machine/tests."""

from kernels.machine.tests import page


def test_the_page_shows_what_its_examples_print(elsewhere):
    assert elsewhere(page.differences, "kernels.machine") == []
