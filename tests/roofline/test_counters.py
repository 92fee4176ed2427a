"""Counters from Nsight Compute's CSV: sums over kernels, units, what is lacking, and what must not pass for a count."""

from pathlib import Path

import pytest
from ncu_sample import BF16, BUSY, DENIED, MARKER, METRICS, NVJET, REDUCE, page

from roofline.profile import ncu, parse

NONE = ("0", "0", "6,144", "0", "0", "0")


def call_of(*kernels, **about):
    """Return the kernels of a call, by what is printed of it."""
    return parse.by_call(parse.parse(page((MARKER, *NONE), *kernels, **about)))[0]


def test_counts_of_a_call_are_the_sums_over_the_kernels_behind_its_marker():
    text = page(
        (MARKER, *NONE),
        ("persistent_kernel", "352,321,536", "54,525,952", "2,415,919,104", *["893,353,197,568"] * 2, "0"),
        (MARKER, *NONE),
        (NVJET, "218,103,808.00", "1,024", "230,686,720", *["1,744,830,464"] * 2, "0"),
        (REDUCE, "65,536", "13,312", "131,072", "0", "0", "0"),
    )
    calls = parse.by_call(parse.parse(text))
    assert [[launch.kernel for launch in call] for call in calls] == [["persistent_kernel"], [NVJET, REDUCE]]
    two = parse.counts(calls[1], "bf16")
    assert two["dram_bytes"] == 218_103_808 + 1024 + 65_536 + 13_312
    assert (two["l2_bytes"], two["tensor_ops"]) == (230_686_720 + 131_072, 1_744_830_464)
    assert two["metrics"]["tensor_ops"] == [f"{BF16}.sum"]
    fp32 = parse.counts(calls[0], "fp32")  # which has no tensor operations
    assert fp32["tensor_ops"] is None
    assert fp32["metrics"].keys() == {"dram_bytes", "l2_bytes"}


def test_parts_stand_in_for_a_metric_that_is_lacking():
    counts = parse.counts(call_of(("k", *["5"] * 3, "n/a", "7", "1")), "bf16")
    assert counts["tensor_ops"] == 8
    assert counts["metrics"]["tensor_ops"] == [f"{BF16}_sparsity_off.sum", f"{BF16}_sparsity_on.sum"]


def test_metric_that_one_kernel_lacks_is_unknown_not_smaller():
    counts = parse.counts(call_of(("a", *["5"] * 6), ("b", "(!) nan", *["5"] * 5)), "bf16")
    assert (counts["dram_bytes"], counts["l2_bytes"]) == (None, 10)
    assert "dram_bytes" not in counts["metrics"]


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: call_of(("a", "12,34", *["1"] * 5)), "'12,34', which is no number"),
        (lambda: call_of(("a", *["1"] * 6), unit="Mbyte"), "is in 'Mbyte', a unit"),
        (lambda: parse.parse(page(("a", *["1"] * 5))), "it was cut off"),
        (lambda: parse.counts(call_of(), "bf16"), "no kernel of it was seen"),
        (lambda: parse.counts(call_of(("a", *["n/a"] * 6)), "bf16"), "every counter of it is n/a"),
    ],
)
def test_what_cannot_be_read_is_an_error_not_a_count(read, message):
    with pytest.raises(ValueError, match=r"__|cells|of it") as error:
        read()
    assert message in str(error.value)


@pytest.mark.parametrize("text", [DENIED, page()])
def test_output_without_a_kernel_has_none(text):
    assert parse.by_call(parse.parse(text)) == []


def test_both_forms_are_asked_for_and_what_the_tool_does_not_list_is_left_out():
    wanted = parse.metrics(["bf16", "fp32"])
    assert set(wanted) == set(METRICS)
    bases = [name.partition(".")[0] for name in METRICS]
    assert parse.available(wanted, "\n".join(f"{name}  Counter" for name in bases[:4])) == wanted[:4]
    assert parse.available(wanted, "\n".join(bases[:3])) == wanted  # no tensor counter: the list is not to be relied on


def program(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_tool_is_found_where_installers_put_it_the_newest_first(monkeypatch, tmp_path):
    _, newer = (program(tmp_path / version / "ncu") for version in ("2024.3.2", "2025.1.0"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(ncu, "PLACES", (str(tmp_path / "*" / "ncu"),))
    assert ncu.find() == newer


def test_who_may_count_where_the_driver_restricts_it(monkeypatch, tmp_path):
    monkeypatch.setattr(ncu, "find", lambda: "ncu")
    params, status = tmp_path / "params", tmp_path / "status"
    monkeypatch.setattr(ncu, "PARAMETERS", params)
    monkeypatch.setattr(ncu, "STATUS", status)
    assert ncu.why_not("cuda") is None  # the driver does not say
    params.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    status.write_text(f"Name:\tpython\nCapPrm:\t0\nCapEff:\t{1 << 38:016x}\n")
    assert ncu.why_not("cuda") is None
    status.write_text("CapEff:\t00000000a80425fb\n")  # root in a container of Docker's
    assert "ERR_NVGPUCTRPERM" in ncu.why_not("cuda")
    params.write_text("RmProfilingAdminOnly: 0\n")
    assert ncu.why_not("cuda") is None


@pytest.mark.parametrize(
    ("printed", "of_program", "how", "complaint"),
    [
        (DENIED, "1 passed", "exit code 1: 1 passed", ncu.FORBIDDEN),
        (BUSY, "1 passed\n", "", "Profiling failed because a driver resource was unavailable. Ensure"),
        ("==ERROR== The application returned an error code (1).\n", "ImportError: x\n", "exit code 1: x",
         "ImportError: x (exit code 1)"),
        ("", "", "", "it printed nothing"),
        ("==ERROR== a", "", "hung", "hung"),
        ("\x00\x07" * 300, "", "", "?" * 200),
    ],
)  # fmt: skip
def test_complaint_is_one_line(printed, of_program, how, complaint):
    line = ncu.complaint(printed, of_program, how)
    assert line.startswith(complaint)
    assert len(line.splitlines()) == 1
