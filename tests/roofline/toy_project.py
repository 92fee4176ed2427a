"""A toy operation: y = 2 * x on `rows` rows of 1000, by two contenders of known durations."""

from dataclasses import dataclass
from functools import partial

from fake_clock import FakeClock

from roofline import operations
from roofline.theory.work import Work
from roofline.worker.ceilings import Probe
from roofline.worker.prepared import Entrant, PreparedCase, unwatched
from roofline.worker.runner import Runner


@dataclass(frozen=True)
class Double(operations.Case):
    rows: int
    dtype: str
    op, form, facts = "double", "r{rows}-{dtype}", {"columns": 1000}

    @property
    def work(self) -> Work:
        return Work(flop=1000 * self.rows, device_bytes=8000 * self.rows)


class DoubleRunner(Runner):
    def clock(self):
        return FakeClock()

    def prepare(self, case, names, first_call=unwatched):
        prepared, of_row = PreparedCase(case, "mul"), {"mul": 2e-6, "add": 1e-6}
        for name in dict.fromkeys(["mul", *names]):
            call = partial(float, of_row[name] * case.rows)
            prepared.enter(name, partial(Entrant, name, call, config="known"))
        return prepared

    def probes(self):
        matmul = Probe("matmul", "known", 4e9, lambda: 1.0, "fp32")
        return [matmul, *(Probe(kind, "known", 2e10, lambda: 1.0) for kind in ("read", "copy"))]


DOUBLE = operations.Operation(
    case=Double,
    analysis="throughput",
    sweep=lambda options: [Double(rows, dtype) for dtype in options.dtypes for rows in options.tokens],
    contenders=(operations.Contender("add", float), operations.Contender("mul", float)),
    runner=DoubleRunner,
    example="double-r100-fp32-mul",
)
