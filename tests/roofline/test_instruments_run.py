"""What a clock reads by its instruments is in the journal, with the sample it took."""

INSTRUMENTED = """

class ClockWithInstruments(FakeClock):
    instruments = 0.0

    def turn(self, calls):
        times = super().turn(calls)
        self.readings = [{"sm_clock_hz": self.instruments + slot} for slot in range(len(calls))]
        return times


Runner.clock = lambda self: ClockWithInstruments()
Runner.instruments = lambda self: lambda: 1.7e9
"""

NO_COMPILER = """

def make():
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")


Runner.instruments = lambda self: make
"""


def test_what_a_clock_with_instruments_read_is_with_the_sample_it_took(run_project):
    outcome = run_project("--benchmark-only", "-k", "torch or numpy", more=INSTRUMENTED)
    (shape,) = outcome.kept.shapes.values()
    read = {name: shape.values(name, "sm_clock_hz") for name in ("torch", "numpy", "probe matmul")}
    assert {len(values) for values in read.values()} == {shape.round_count}
    assert all(read[name][turn.index] == 1.7e9 + slot for turn in shape.rounds for slot, name in enumerate(turn.order))


def test_without_a_c_compiler_the_run_goes_on_without_instruments_and_says_so(run_project):
    outcome = run_project("--benchmark-only", "-k", "torch or numpy", more=NO_COMPILER)
    assert outcome.code == 0, outcome.text
    assert outcome.rows.keys() == {"torch", "numpy"}
    line = "Instruments: none (not supported: Failed to find C compiler. Please specify via CC environment variable)"
    assert line in outcome.text
    assert line in outcome.report
