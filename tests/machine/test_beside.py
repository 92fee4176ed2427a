"""What runs beside a matmul takes no more of an SM than is kept for it."""

from types import SimpleNamespace

import beside

from kernels.inspect.cubin import Cubin


def test_what_runs_beside_a_matmul_takes_no_more_of_an_sm_than_is_kept_for_it(printed_elsewhere):
    found = printed_elsewhere("import json; from beside import beside; print(json.dumps(beside()))")
    assert list(found) == ["copier", "counting copier", "wait", "raise", "stamp", "gate", "clock"]
    assert not [problem for taken in found.values() for problem in taken["problems"]]


def test_what_is_beside_a_matmul_is_held_to_what_is_kept_for_it(monkeypatch):
    took = Cubin(49, 0, 0, 0, {}, 0, 0)
    copier, small = (SimpleNamespace(args={"num_warps": warps}) for warps in (4, 1))
    monkeypatch.setattr(beside, "launches", lambda: {"copier": copier, "stamp": small})
    monkeypatch.setattr(beside, "compile_launch", lambda launch, target: took)
    found = beside.beside()
    assert found["copier"]["problems"] == [
        "takes 7168 registers, 6144 are kept for it; make it smaller, or `KEPT` larger"
    ]
    assert found["stamp"]["problems"] == [
        "takes 1792 registers, 1024 are kept for it; make it smaller, or `KEPT` larger"
    ]
    took = Cubin(32, 8, 2, 256, {}, 0, 0)
    assert [problem.split()[0] for problem in beside.beside()["stamp"]["problems"]] == ["spills", "takes"]
