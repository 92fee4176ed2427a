"""What a clock reads by its instruments is in the journal, with the sample it took."""

from pathlib import Path

from roofline.report import journal

INSTRUMENTED = """

class ClockWithInstruments(FakeClock):
    def turn(self, calls):
        times = super().turn(calls)
        self.said = [{"sm_clock_hz": self.instruments + slot} for slot in range(len(calls))]
        return times


@pytest.fixture(scope="session")
def ffn_clock():
    return ClockWithInstruments()


@pytest.fixture(scope="session")
def ffn_instruments():
    return 1.7e9
"""


def test_what_a_clock_with_instruments_read_is_with_the_sample_it_took(run_project):
    conftest = (Path(__file__).parent / "small_project.py").read_text() + INSTRUMENTED
    run = journal.load(run_project("--benchmark-only", "-k", "torch or numpy", conftest=conftest).folder)
    (shape,) = run.shapes.values()
    torch, numpy = (shape["notes"][name] for name in ("torch", "numpy"))
    assert len(torch) == len(numpy) == shape["rounds"]
    assert {torch[index]["sm_clock_hz"] + numpy[index]["sm_clock_hz"] for index in torch} == {2 * 1.7e9 + 1}
