"""The --ffn-* options: defaults by device and mode, and one clear error for each bad value."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from chosen_options import options

import roofline_pytest
from conftest import ROOT
from roofline.commands.cli import main
from roofline.host.arguments import BENCH
from roofline.operations import all_gather_matmul, matmul, weight_prefetch
from roofline.operations.contenders import FIRST_CALL_S
from roofline.operations.options import (
    DEVICES,
    FLAGS,
    OPTIONS,
    Options,
    add,
    as_values,
    code_of,
    resumed,
    values_given,
    way_on,
)  # fmt: skip
from roofline.protocol.messages import Step
from roofline.supervise.limits import LIMIT_S
from roofline.theory.work import ITEMSIZE

gathers, prefetches = all_gather_matmul.OPERATION.sweep, weight_prefetch.OPERATION.sweep


def resumed_from(chosen, without="", **given):
    """The options of a run that goes on with one of `chosen`, whose journal lacks those called `without`."""
    saved = json.loads(json.dumps(as_values(chosen)))
    saved.pop(without, None)
    values = {f"ffn_{name}": value for name, value in given.items()}
    return resumed(values_given(values.get), {"cases": ["some"], "options": saved}, Path("/runs/one"))


def gathered(chosen):
    return [case.id.removeprefix("all_gather_matmul-") for case in gathers(chosen)]


def test_defaults_of_a_device():
    gpu, cpu = options("cuda"), options()
    assert (gpu.model, gpu.dtypes, cpu.model, cpu.dtypes) == ("xxl", ("bf16",), "xxl/16", ("fp32",))
    assert (gpu.tp, gpu.results) == ((1, 8), Path("/checkout/results/local"))
    assert len(matmul.sweep(gpu)) == 36
    assert max(case.work.flop for case in matmul.sweep(options(timed=False))) < 1e8  # plain tests are small


def test_the_way_on_is_the_way_that_was_come(monkeypatch):
    monkeypatch.setattr(roofline_pytest, "begin", lambda *given: None)
    monkeypatch.setenv(BENCH, "")
    chosen = replace(options(), contenders=("torch",))
    assert way_on(Path("run"), chosen).startswith("python3 -m pytest --benchmark-only --ffn-resume=run")
    for program, words in (("/my own/roofline", "'/my own/roofline'"), ("roofline/__main__.py", "python3 -m roofline")):
        monkeypatch.setattr("sys.argv", [program])
        main(["bench"])
        assert way_on(Path("run"), chosen).startswith(f"{words} bench --ffn-resume=run")
    assert way_on(Path("run"), replace(chosen, world=2)).startswith("torchrun --nproc-per-node=2 -m pytest")


def test_a_quick_run_has_few_shapes_and_rounds_unless_chosen():
    quick = options(quick=True)
    assert (quick.tokens, quick.tp, quick.processes, quick.max_seconds) == ((1, 16, 256, 1024), (8,), 1, 0.8)
    chosen = options(quick=True, tokens="4,2048", tp="1,2", processes="3", max_seconds="2")
    assert (chosen.tokens, chosen.tp, chosen.processes, chosen.max_seconds) == ((4, 2048), (1, 2), 3, 2)
    assert len(gathered(chosen)) == 2
    assert resumed_from(quick).quick
    with pytest.raises(ValueError, match="leave out --ffn-quick"):
        resumed_from(quick, quick=True)


def helps() -> dict[str, str]:
    """{flag: its help}."""
    parser = Mock()
    add(parser)
    calls = parser.getgroup().addoption.call_args_list
    return {call.args[0]: call.kwargs["help"] for call in calls}


def test_help_names_the_default_of_each_option():
    texts = helps()
    assert [*texts] == [*FLAGS.values()]
    assert [name for name, text in texts.items() if "default: " not in text] == []
    for name, choices in {"layers": matmul.ALL_LAYERS, "dtype": ITEMSIZE, "device": DEVICES}.items():
        assert ", ".join(choices) in texts[FLAGS[name]]
    for chosen in (options("cuda"), options()):
        assert ",".join(map(str, chosen.tokens)) in texts["--ffn-tokens"]
        for name in vars(chosen).keys() & FLAGS.keys():
            value = getattr(chosen, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                assert f"default: {value:g}" in texts[FLAGS[name]], name
    assert "as 3%%: " in texts["--ffn-decide"]  # argparse fills in what follows a single %


def test_each_option_is_read_behind_the_options():
    """By what plans, what prepares, or what measures."""
    names = "roofline", "kernels", "collectives", "docs"
    paths = [path for name in names for path in (ROOT / name).rglob("*.py") if path.name != "options.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    assert [field.name for field in fields(Options) if not re.search(rf"\boptions\.{field.name}\b", text)] == []


def test_help_and_page_name_every_limit_of_a_first_call():
    flag = "--ffn-first-call-seconds"
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(f"| `{flag} ")]
    limits = sorted({*FIRST_CALL_S.values(), *LIMIT_S[Step.CALL].values()})
    for text in (helps()[flag], *rows):
        assert sorted(map(float, re.findall(r"\d+", text))) == limits


def test_gathers_go_over_the_balance_by_default():
    gpu, cpu = options("cuda"), options()
    assert (len(gathered(gpu)), gathered(gpu)[0]) == (16, "xxl-up-p8-tp4-m8192-bf16-balance2750")
    assert gathered(gpu)[-3:] == [f"xxl-up-p8-tp{tp}-m8192-bf16-pcie" for tp in (2, 4, 8)]
    assert gathered(gpu)[6] == "xxl-up-p8-tp16-m8192-bf16-ridge"  # the nearest above: tp 26 is below it
    assert "memory0.18" in gathered(options(tokens="2048"))[-2]
    for chosen, balance in ((gpu, 2750), (cpu, 2750 / 16 / 2)):
        assert {case.work.wire_intensity > balance for case in prefetches(chosen)} == {True, False}


def test_cases_go_by_what_was_chosen():
    chosen = options(tokens="16,2048", tp="8", ranks="2,4", link_bandwidth="1e9,ridge")
    assert gathered(chosen) == [
        f"xxl/16-up-p{ranks}-tp8-m2048-fp32-{wire}" for ranks in (2, 4) for wire in ("1GBps", "ridge")
    ]
    assert {(case.tp, case.m) for case in prefetches(chosen)} == {(8, 16), (8, 2048)}
    for name in ("ranks", "tp"):
        with pytest.raises(ValueError, match=f"{name}=3 does not divide"):
            gathers(options(**{name: "3"}))
    down, odd = options(layers="down"), options(model="5,8")
    assert [gathers(down), prefetches(down), gathers(odd), prefetches(odd), gathers(options(tokens="16"))] == [[]] * 5
    chosen = options(model="64,128", tokens="4, 4,2", tp="2", dtype="fp16,fp32", layers="down", contenders="torch")
    assert [case.id for case in matmul.sweep(chosen)] == [
        f"matmul-64x128-down-tp2-m{m}-{dtype}" for dtype in ("fp16", "fp32") for m in (4, 2)
    ]
    assert chosen.contenders == ("torch",)


def test_fp8_is_of_matmuls_on_a_gpu_alone():
    several = options("cuda", dtype="fp8,bf16,fp8_block")
    assert {case.dtype for case in matmul.sweep(several)} == {"fp8", "bf16", "fp8_block"}
    for sweep in (gathers, prefetches):
        assert {case.dtype for case in sweep(several)} == {"bf16"}
        assert sweep(options("cuda", dtype="fp8,fp8_block")) == []
    operation = all_gather_matmul.OPERATION
    assert operation.lacking(several) == ""
    assert "fp8 is of matmuls alone" in operation.lacking(options("cuda", dtype="fp8"))


def test_resumed_run_has_the_cases_and_options_of_the_run():
    chosen = options(ranks="4", link_bandwidth="ridge")
    for sweep in (gathers, prefetches):
        assert sweep(resumed_from(chosen)) == sweep(chosen) != []
    assert gathers(resumed_from(chosen, without="gather")) == []  # a run before there were gathers


@pytest.mark.parametrize(("name", "given"), [("contender", ["/mine.py::f"]), ("operations", "matmul,/mine.py")])
def test_code_is_named_again_for_a_resumed_run(name, given, tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "folder").mkdir()

    def at(folder) -> dict:
        return {name: json.loads(json.dumps(given).replace("/", f"{folder}/"))}

    chosen = options(**at(tmp_path))
    with pytest.raises(ValueError, match=f"name it too: python3 .* {code_of(chosen)[0]}$"):
        resumed_from(chosen)
    with pytest.raises(ValueError, match=f"leave out --ffn-{name}"):
        resumed_from(options(), **at(tmp_path))
    again = resumed_from(chosen, **at(tmp_path / "folder" / ".."))
    assert (again.users, again.operations) == (chosen.users, chosen.operations)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tokens": "1,x"}, "--ffn-tokens: 'x' is not a whole number from 1 on"),
        ({"tokens": ""}, "--ffn-tokens '': give at least one value"),
        ({"dtype": "fp8"}, "--ffn-dtype fp8: it needs a Hopper GPU, and this run is on the CPU; take bf16 or fp32"),
        ({"link_bandwidth": "1e9", "model": "5,8"}, "none of 8, 4, 2 ranks divides both d_model=5 and d_ff=8 of 5x8"),
        ({"link_bandwidth": "pcie"}, "--ffn-link-bandwidth 'pcie': it needs an NVIDIA GPU, which moves the bytes"),
        ({"link_bandwidth": "fast"}, "--ffn-link-bandwidth: 'fast' is no bandwidth: give bytes/s"),
        ({"shapes": "/nowhere/none.csv"}, "No such file or directory"),
        ({"layers": "qkv"}, "--ffn-layers: xxl/16 has no layer qkv, but up, down"),
        ({"layers": "gate_up", "model": "gpt-3"}, "gpt-3 has no layer gate_up, but up, down, qkv, o"),
        ({"layers": "shape"}, "--ffn-layers 'shape': it is one of up, down, gate_up, qkv, o"),
        ({"max_seconds": "nan"}, "--ffn-max-seconds: 'nan' is not a number above 0"),
    ],
)
def test_bad_values_are_named(given, text):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        options(**given)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_options_that_need_no_value_are_known_where_pytest_begins():
    alone = [FLAGS[name] for name, option in OPTIONS.items() if "action" in option.settings]
    assert {*roofline_pytest.ALONE} == {*alone} - {"--ffn-contender"}  # which takes a value each time
