"""Two contenders of known durations, one that is wrong, one that cannot run; no device is touched."""

import itertools

import pytest

pytest_plugins = ["roofline.plugin"]

TORCH = [0.002, 0.0021, 0.0019, 0.0025]
NUMPY = [0.001, 0.0011, 0.0009, 0.0010]


class FakeClock:
    """Each call returns what it took; time passes by that much."""

    timer = "fake_clock_replay"

    def __init__(self):
        self.seconds = 0.0

    def now(self):
        return self.seconds

    def turn(self, calls):
        times = [call() for call in calls]
        self.seconds += sum(time for time in times if time)
        return times


@pytest.fixture(scope="session")
def ffn_clock():
    return FakeClock()


@pytest.fixture(scope="session")
def ffn_probes():
    from roofline.measure.ceilings import Probe

    return [
        Probe("matmul", "known", 3e9, lambda: 1e-3, "fp32"),
        Probe("matmul", "slower", 1e9, lambda: 1e-3, "fp32"),
        Probe("read", "known", 1e9, lambda: 1e-3),
        Probe("copy", "known", 2e9, lambda: 1e-3),
    ]


@pytest.fixture
def case(request, shape):
    from roofline.theory.work import Matmul

    _, model, layer, tp, m, dtype = shape.split("-")
    return Matmul(model, layer, int(tp[2:]), int(m[1:]), dtype)


@pytest.fixture
def prepare(request):
    def prepare(case, names):
        from roofline.measure.lineup import Lineup

        lineup = Lineup("torch")
        durations = {"torch": TORCH, "numpy": NUMPY}
        for name in dict.fromkeys(["torch", *names]):
            if name == "wrong":
                lineup.wrong[name] = "wrong: relative error 1 is above 1e-05"
            elif name == "unable":
                lineup.unable[name] = "unable: needs a Hopper GPU"
            else:
                # Rotated by the warm-up's one turn, so that round 0 gets the first duration.
                endless = itertools.cycle(durations[name])
                warmed = iter([0.1])
                lineup.ready[name] = lambda e=endless, w=warmed: next(w, None) or next(e)
                lineup.config[name], lineup.relative_error[name] = "known", 1e-7
        return lineup

    return prepare
