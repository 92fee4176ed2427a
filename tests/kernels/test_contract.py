"""Every refusal names the value, the limit and the way out; and `matmul` picks the right kernel of ours."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from kernels import contract, decode, hopper, persistent, tiled
from kernels.contract import MAX_SIZE, overlap, validate
from kernels.registry import BESIDE_LINK, CONTENDERS, Contender, Planner, load


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def meta(shape: tuple, stride: tuple) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=torch.float16, device="meta")


def strided(shape: tuple, row: int) -> torch.Tensor:
    return BUFFER.as_strided(shape, (row, 1))


ROOT = Path(__file__).parents[2]
BUFFER = half(64, 64)
X, W, EIGHT = half(4, 8), half(6, 8), half(8, 8)
GROWING = W.clone().requires_grad_()

# name: (inputs, error, words that must stand in the message: value, limit, way out)
REFUSED = {
    "float64": (lambda: (X.double(), W), TypeError, ["x is torch.float64", "bfloat16, float16 and float32", ".to()"]),
    "unequal dtypes": (lambda: (X, W.float()), TypeError, ["w is torch.float32", "x is torch.float16", ".to()"]),
    "unequal out dtype": (lambda: (X, W, torch.zeros(4, 6)), TypeError, ["out is torch.float32", "float16", ".to()"]),
    "rank of x": (lambda: (half(2, 4, 8), W), ValueError, ["x has shape [2, 4, 8]", "rank 2", ".flatten(0, -2)"]),
    "rank of w": (lambda: (X, half(8)), ValueError, ["w has shape [8]", "rank 2"]),
    "device of w": (lambda: (X, meta((6, 8), (8, 1))), ValueError, ["w is on meta", "x is on cpu", ".to()"]),
    "device of out": (lambda: (X, W, meta((4, 6), (6, 1))), ValueError, ["out is on meta", "x is on cpu", ".to()"]),
    "inner sizes": (lambda: (X, half(8, 6)), ValueError, ["K=8", "K=6", "w.T.contiguous()"]),
    "last stride": (lambda: (half(8, 4).T, W), ValueError, ["x has a last stride of 4, 1 is needed", ".contiguous()"]),
    "gradient": (lambda: (X, GROWING), ValueError, ["w requires a gradient", "no_grad()", ".detach()"]),
    "size": (lambda: (meta((1, 2**31), (1, 1)), W), ValueError, [str(2**31), str(MAX_SIZE), "split"]),
    "out shape": (lambda: (X, W, half(6, 4)), ValueError, ["[6, 4]", "[4, 6]", "out=None"]),
    "out overlaps itself": (lambda: (X, W, strided((4, 6), 5)), ValueError, ["row stride of 5", "N=6", "torch.empty"]),
    "expanded out": (lambda: (X, W, half(1, 6).expand(4, 6)), ValueError, ["row stride of 0", "N=6", "torch.empty"]),
    "out is x": (lambda: (BUFFER[:4, :8], EIGHT, BUFFER[:4, :8]), ValueError, ["out shares memory with x", "its own"]),
    "out touches w": (lambda: (X, BUFFER[:8, :8], BUFFER[4:8, 7:15]), ValueError, ["shares memory with w", "its own"]),
}

NOT_16_BYTES = "is not a multiple of 8: TMA needs 16-byte rows; pad"
TMA_REFUSED = {
    "K": (lambda: (half(4, 100), half(8, 100)), [f"K=100 {NOT_16_BYTES} K or use kernels.tiled"]),
    "N": (lambda: (half(4, 16), half(100, 16)), [f"N=100 {NOT_16_BYTES} N or use kernels.tiled"]),
    "row stride": (lambda: (strided((4, 16), 20), half(8, 16)), ["x has a row stride of 20", "multiple of 8", "tiled"]),
    "out stride": (lambda: (X, EIGHT, strided((4, 8), 12)), ["out has a row stride of 12", "multiple of 8", "tiled"]),
    "expanded x": (lambda: (X[:1].expand(4, 8), EIGHT), ["x has a row stride of 0", "K=8", ".contiguous()", "tiled"]),
    "sliding w": (lambda: (X, strided((6, 8), 4)), ["w has a row stride of 4", "K=8", "kernels.tiled"]),
    "address": (lambda: (BUFFER[:4, 4:12], EIGHT), ["x starts 8 bytes past a multiple of 16", ".clone()", "tiled"]),
}


def refused(call, error: type, words: list[str]) -> str:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_the_contract(case):
    inputs, error, words = REFUSED[case]
    message = refused(lambda: validate(*inputs()), error, words)
    for run in (kernels.matmul, *(contender.load() for contender in CONTENDERS.values())):
        assert refused(partial(run, *inputs()), error, words) == message
    for contender in CONTENDERS.values():
        assert contender.why_not(*inputs()) == message


@pytest.fixture
def gpu_of(monkeypatch):
    """`gpu_of(major, minor)`: as if tensors were on a GPU of that compute capability, and kernels compiled."""
    monkeypatch.setattr(hopper, "require_runnable", lambda kernel, x: None)
    monkeypatch.setattr(hopper, "interpreted", lambda kernel: False)
    return lambda *version: monkeypatch.setattr(hopper, "capability", lambda device: version)


@pytest.mark.parametrize("case", TMA_REFUSED)
def test_refusals_of_tma(case, gpu_of):
    gpu_of(9, 0)
    inputs, words = TMA_REFUSED[case]
    message = refused(lambda: persistent.matmul(*inputs()), ValueError, words)
    assert CONTENDERS["persistent"].why_not(*inputs()) == message
    validate(*inputs())  # the contract itself allows it, and so does tiled


def test_tiled_is_refused_on_hopper_where_triton_leaves_out_the_fence(monkeypatch):
    monkeypatch.setattr(tiled, "require_runnable", lambda kernel, x: None)
    monkeypatch.setattr(tiled, "interpreted", lambda kernel: False)
    for lacks, version, x in ((False, 9, X), (True, 8, X), (True, 9, X.float()), (True, 9, X)):
        monkeypatch.setattr(tiled, "LACKS_FENCE", lacks)
        monkeypatch.setattr(tiled, "capability", lambda device, version=version: (version, 0))
        if (lacks, version, x.dtype) != (True, 9, torch.float16):
            tiled.require(x, EIGHT.to(x.dtype))
    refused(lambda: tiled.require(X, EIGHT), ValueError, ["no fence", "Triton 3.7.1", "kernels.persistent"])


@pytest.mark.parametrize(
    ("interpreted", "dtype", "error", "words"),
    [
        (False, torch.float16, ValueError, ["x is on cpu", "CUDA device", "TRITON_INTERPRET=1", "never timed"]),
        (True, torch.bfloat16, TypeError, ["x is bfloat16", "float16 or float32", "TRITON_INTERPRET"]),
    ],
)
def test_a_compiled_kernel_refuses_the_cpu_and_the_interpreter_bf16(interpreted, dtype, error, words, monkeypatch):
    monkeypatch.setattr(contract, "interpreted", lambda kernel: interpreted)
    for module in (tiled, persistent, decode):
        refused(partial(module.matmul, X.to(dtype), EIGHT.to(dtype)), error, words)


@pytest.mark.parametrize("without_memory", [partial(torch.device, "meta"), FakeTensorMode], ids=["meta", "fake"])
def test_tensors_without_memory_keep_the_contract_and_are_not_run(without_memory):
    with without_memory():
        x, w, out, buffer = (torch.empty(size, dtype=torch.float16) for size in ((4, 8), (8, 8), (4, 8), (8, 32)))
        validate(buffer[:4, 8:16], w, buffer[4:, 16:24])
        refused(lambda: validate(buffer[:4, 8:16], w, buffer[3:7, 9:17]), ValueError, ["out shares memory with x"])
        for run in (kernels.matmul, tiled.matmul, persistent.matmul, decode.matmul):
            refused(partial(run, x, w, out), ValueError, ["meta or fake tensor", "[4, 8]", "pass a real one"])


@pytest.mark.parametrize("name", ["persistent", "decode"])
def test_other_gpus_and_fp32_are_refused(name, gpu_of):
    require = CONTENDERS[name].load().require
    gpu_of(8, 9)
    refused(lambda: require(X, EIGHT), ValueError, ["capability 8.9", f"{name} needs 9.x", "kernels.tiled"])
    gpu_of(9, 0)
    words = [f"float32, {name} takes bfloat16 and float16", "kernels.tiled"]
    refused(lambda: require(X.float(), EIGHT.float()), TypeError, words)
    require(X, EIGHT)


def test_decode_refuses_many_rows_and_what_tma_does(gpu_of):
    gpu_of(9, 0)
    for inputs, words in (
        ((half(65, 8), W), ["M=65", "up to 64", "kernels.persistent"]),
        ((half(1, 100), half(8, 100)), ["K=100", "multiple of 8", "kernels.tiled"]),
        ((X, BUFFER[:4, 4:12]), ["w starts 8 bytes past", ".clone()"]),
    ):
        refused(partial(decode.require, *inputs), ValueError, words)
    decode.require(half(64, 8), W, BUFFER[:, 1:7])  # out needs no alignment


@pytest.mark.parametrize(
    ("where", "able", "picked"),
    [
        ("cpu", ("decode", "persistent"), "tiled"),
        ("cuda", (), "tiled"),
        ("cuda", ("persistent", "warpgroup"), "persistent"),
        ("cuda", ("decode", "persistent"), "decode"),
    ],
)
def test_matmul_picks(where, able, picked, monkeypatch):
    monkeypatch.setattr(Contender, "why_not", lambda self, x, w, out: None if self.name in able else "no TMA")
    monkeypatch.setattr(Contender, "load", lambda self: lambda x, w, out: self.name)
    assert kernels.matmul(SimpleNamespace(is_cuda=where == "cuda"), None) == picked


ABSENT = """
import json, sys
sys.modules[{!r}] = None
import torch, kernels
from kernels.contract import reason
from kernels.registry import CONTENDERS
x = torch.ones(8, 8)
assert CONTENDERS["torch"].load()(x, x, torch.empty(8, 8))[0, 0] == 8
whys = {{name: CONTENDERS[name].why_not(x, x) for name in ("tiled", "persistent", "warpgroup")}}
print(json.dumps(whys | {{"matmul": reason(kernels.matmul, x, x)}}))
"""


def test_without_triton_or_a_part_of_it_others_work_and_ours_say_what_is_missing(printed_elsewhere):
    for message in printed_elsewhere(ABSENT.format("triton")).values():
        assert "needs Triton 3.7 to 3.9: " in message
        assert message.endswith("; install it (on Linux) or take the contender 'torch' or 'cublas'")
    without_gluon = printed_elsewhere(ABSENT.format("triton.experimental.gluon.language.nvidia.hopper"))
    assert without_gluon["warpgroup"].startswith("kernels.warpgroup:matmul needs Triton 3.7 to 3.9")
    assert without_gluon["persistent"].startswith("x is on cpu")


def test_the_registry_lists_contenders():
    def names(**options):
        return Planner(SimpleNamespace(contenders=None, **options)).names(None)

    ours = ["decode", "persistent", "tiled", "warpgroup"]
    assert names(device="cpu", timed=True) == ["torch", "numpy"]
    assert names(device="cuda", timed=True) == ["cublas", *ours]
    assert names(device="cpu", timed=False) == ["torch", "numpy", *ours]


def test_every_path_of_the_registry_is_found_under_its_own_name():
    for name, contender in CONTENDERS.items():
        function = contender.load()
        assert contender.name == name
        assert callable(function)
        if contender.kind == "triton":
            assert (function.name, function.jit.__name__) == (name, f"{name}_kernel")
    assert all(callable(load(path)) for path in BESIDE_LINK.values())


def test_an_overlap_is_never_missed_and_what_begins_where_another_ends_is_none():
    """Compare with the offsets that each view covers."""
    random, storage, seen = torch.Generator().manual_seed(0), half(4096), set()
    for numbers in torch.randint(0, 60, (2000, 8), generator=random).tolist():
        views = [((1 + m % 5, 1 + n % 8), (row % 24, 1), start) for m, n, row, start in (numbers[:4], numbers[4:])]
        a, b = (set(torch.arange(4096).as_strided(*view).flatten().tolist()) for view in views)
        overlaps = overlap(*(storage.as_strided(*view) for view in views))
        assert overlaps == (min(a) <= max(b) and min(b) <= max(a)), views
        assert overlaps or not a & b, views
        seen.add((overlaps, bool(a & b)))
    assert seen == {(True, True), (True, False), (False, False)}
    assert not overlap(storage[:8], half(8))


def test_a_gradient_is_fine_where_none_is_recorded():
    with torch.no_grad():
        validate(X, GROWING)
