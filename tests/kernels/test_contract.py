"""Every refusal names the value, the limit and the way out; and `matmul` picks the right kernel of ours."""

import itertools
import sys
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import without_triton

import kernels
from kernels import contract, decode, hopper, persistent, registry, ring, tiled, vendor
from kernels.contract import MAX_SIZE, overlap, validate
from kernels.registry import BESIDE_LINK, CONTENDERS, Contender, Planner, load, module_of


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def meta(shape: tuple, stride: tuple) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=torch.float16, device="meta")


def strided(shape: tuple, row: int) -> torch.Tensor:
    return BUFFER.as_strided(shape, (row, 1))


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(contract.FP8)


def scales(m: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(m, 1), torch.ones(1, n)


BUFFER = half(64, 64)
X, W, EIGHT = half(4, 8), half(6, 8), half(8, 8)
GROWING = W.clone().requires_grad_()

# name: (inputs, error, words that must stand in the message: value, limit, way out)
REFUSED = {
    "float64": (lambda: (X.double(), W), TypeError, ["x is torch.float64", "bfloat16, float16 and float32", ".to()"]),
    "unequal dtypes": (lambda: (X, W.float()), TypeError, ["w is torch.float32", "x is torch.float16", ".to()"]),
    "rank of x": (lambda: (half(2, 4, 8), W), ValueError, ["x has shape [2, 4, 8]", "rank 2", ".flatten(0, -2)"]),
    "device of w": (lambda: (X, meta((6, 8), (8, 1))), ValueError, ["w is on meta", "x is on cpu", ".to()"]),
    "size": (lambda: (meta((1, 2**31), (1, 1)), W), ValueError, [str(2**31), str(MAX_SIZE), "split"]),
    "inner sizes": (lambda: (X, half(8, 6)), ValueError, ["K=8", "K=6", "w.T.contiguous()"]),
    "last stride": (lambda: (half(8, 4).T, W), ValueError, ["x has a last stride of 4, 1 is needed", ".contiguous()"]),
    "gradient": (lambda: (X, GROWING), ValueError, ["w requires a gradient", "no_grad()", ".detach()"]),
    "out shape": (lambda: (X, W, half(6, 4)), ValueError, ["[6, 4]", "[4, 6]", "out=None"]),
    "out overlaps itself": (lambda: (X, W, strided((4, 6), 5)), ValueError, ["row stride of 5", "N=6", "torch.empty"]),
    "no scales": (lambda: (fp8(4, 16), fp8(6, 16)), TypeError, ["needs scales", "x_scales[4, 1], w_scales[1, 6]"]),
    "scales of fp16": (lambda: (X, W, None, scales(4, 6)), TypeError, ["float16, which has no scales", "beside fp8"]),
    "out of fp8": (
        lambda: (fp8(4, 16), fp8(6, 16), half(4, 6), scales(4, 6)),
        TypeError,
        ["out is torch.float16", "float8_e4m3fn, beside which out is torch.bfloat16", ".to()"],
    ),
    "dtype of scales": (
        lambda: (fp8(4, 16), fp8(6, 16), None, (half(4, 1), scales(4, 6)[1])),
        TypeError,
        ["x_scales is torch.float16, scales are float32", ".to()"],
    ),
    "shape of scales": (
        lambda: (fp8(4, 16), fp8(6, 16), None, (*scales(4, 1)[:1], torch.ones(6, 1))),
        ValueError,
        ["w_scales has shape [6, 1]", "needs [1, 6], and both by block [4, 1] and [1, 1]", "reshape"],
    ),
    "rows of scales by block": (
        lambda: (fp8(4, 256), fp8(136, 256), None, (torch.ones(4, 2), torch.ones(2, 2))),
        ValueError,
        ["x_scales by block lie by columns", ".T.contiguous().T"],
    ),
    "device of scales": (
        lambda: (fp8(4, 16), fp8(6, 16), None, (meta((4, 1), (1, 1)).float(), scales(4, 6)[1])),
        ValueError,
        ["x_scales is on meta but x is on cpu", ".to()"],
    ),
    "strided scales": (
        lambda: (fp8(4, 16), fp8(6, 16), None, (torch.ones(4, 2)[:, :1], scales(4, 6)[1])),
        ValueError,
        ["x_scales is not contiguous", ".contiguous()"],
    ),
    "out touches w": (lambda: (X, BUFFER[:8, :8], BUFFER[4:8, 7:15]), ValueError, ["shares memory with w", "its own"]),
}

TMA_REFUSED = {
    "K": (lambda: (half(4, 100), half(8, 100)), ["x has K=100 and a row stride of 100, not a multiple of 8", "tiled"]),
    "out": (lambda: (X, EIGHT, strided((4, 8), 12)), ["out has N=8 and a row stride of 12", "kernels.tiled"]),
    "expanded x": (lambda: (X[:1].expand(4, 8), EIGHT), ["x has a row stride of 0", "K=8", ".contiguous()", "tiled"]),
    "address of w": (lambda: (X, BUFFER[:4, 4:12]), ["w starts 8 bytes past a multiple of 16", ".clone()", "tiled"]),
}


def refused(call, error, words: list[str]) -> str:
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
    monkeypatch.setattr(hopper, "require_runnable", lambda x: None)
    monkeypatch.setattr(hopper, "interpreted", lambda: False)
    return lambda *version: monkeypatch.setattr(hopper, "capability", lambda device: version)


@pytest.mark.parametrize("case", TMA_REFUSED)
def test_refusals_of_tma(case, gpu_of):
    gpu_of(9, 0)
    inputs, words = TMA_REFUSED[case]
    message = refused(lambda: persistent.matmul(*inputs()), ValueError, words)
    assert CONTENDERS["persistent"].why_not(*inputs()) == message
    validate(*inputs())  # the contract itself allows it, and so does tiled


@pytest.mark.parametrize(
    ("interpreted", "dtype", "error", "words"),
    [
        (False, torch.float16, ValueError, ["x is on cpu", "CUDA device", "TRITON_INTERPRET=1", "never timed"]),
        (True, torch.bfloat16, TypeError, ["x is torch.bfloat16", "float16 or float32", "TRITON_INTERPRET"]),
    ],
)
def test_a_compiled_kernel_refuses_the_cpu_and_the_interpreter_bf16(interpreted, dtype, error, words, monkeypatch):
    monkeypatch.setattr(contract, "interpreted", lambda: interpreted)
    for module in (tiled, persistent, decode):
        refused(partial(module.matmul, X.to(dtype), EIGHT.to(dtype)), error, words)


def by_row(m: int, n: int, k: int) -> tuple:
    return fp8(m, k), fp8(n, k), None, scales(m, n)


def by_block(m: int, n: int, k: int) -> tuple:
    return fp8(m, k), fp8(n, k), None, contract.empty_scales(fp8(m, k), fp8(n, k), by_block=True)


@pytest.fixture
def installed(gpu_of, monkeypatch):
    """`installed(capability, cuda)`: as if tensors were on such a GPU, under that CUDA, and DeepGEMM was missing."""
    monkeypatch.setattr(vendor, "require_device", lambda kind, x: None)
    monkeypatch.setattr(vendor, "find_spec", lambda name: None)
    monkeypatch.setattr(tiled, "require_runnable", lambda x: None)
    monkeypatch.setattr(ring, "interpreted", lambda: False)

    def install(capability: tuple[int, int] = (9, 0), cuda: str = "13.0") -> None:
        gpu_of(*capability)
        monkeypatch.setattr(vendor, "capability", lambda device: capability)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return install


OF_ROWS = "{} takes no scales by block", "take blockwise"
OF_BLOCKS = "{} takes fp8 with scales by block alone", "take persistent"
NO_FP8 = "x is torch.float8_e4m3fn, which {} does not multiply", "take cublas, persistent", "bfloat16"


@pytest.mark.parametrize(
    ("names", "operands", "words"),
    [
        (
            "persistent decode",
            lambda: (X.float(), EIGHT.float()),
            ("float32, {} takes bfloat16 and float16", "tiled"),
        ),
        ("tiled torch inductor decode_ring", lambda: by_row(16, 16, 32), NO_FP8),
        ("persistent decode warpgroup", lambda: by_block(8, 144, 256), OF_ROWS),
        ("blockwise warpgroup_blockwise", lambda: by_row(8, 144, 256), OF_BLOCKS),
        ("blockwise warpgroup_blockwise", lambda: (EIGHT, EIGHT), OF_BLOCKS),
        (
            "cublas",
            lambda: by_row(16, 16, 24),
            ("K=24", "16"),
        ),
        (
            "cublas",
            lambda: by_block(8, 144, 640),
            ("K=640, 5 blocks", "a multiple of 4", "take blockwise"),
        ),
        (
            "deep_gemm",
            lambda: by_row(8, 144, 384),
            ("fp8 with scales by block", "take cublas"),
        ),
        (
            "deep_gemm",
            lambda: by_block(1, 144, 640),
            ("DeepGEMM is not installed", "install.sh", "take blockwise"),
        ),
    ],
)
def test_a_hopper_is_refused_what_a_contender_does_not_multiply(names, operands, words, installed):
    installed()
    for name in names.split():
        refused(
            lambda name=name: CONTENDERS[name].load().require(*operands()),
            (TypeError, ValueError),
            [word.format(name) for word in words],
        )


@pytest.mark.parametrize(
    ("name", "operands", "capability", "cuda", "words"),
    [
        (
            "persistent",
            lambda: (X, EIGHT),
            (8, 9),
            "13.0",
            ["capability 8.9", "persistent needs 9.x", "kernels.tiled"],
        ),
        (
            "persistent",
            lambda: by_row(16, 16, 32),
            (8, 9),
            "13.0",
            ["needs 9.x (Hopper); cast x and w to bfloat16"],
        ),
        (
            "cublas",
            lambda: by_row(16, 16, 32),
            (8, 0),
            "13.0",
            ["capability 8.0, fp8 needs 9.0", "bfloat16"],
        ),
        (
            "cublas",
            lambda: by_block(8, 144, 512),
            (9, 0),
            "12.8",
            ["CUDA is 12.8", "from 12.9 on", "take blockwise"],
        ),
        (
            "cublaslt_best",
            lambda: by_row(8, 144, 384),
            (9, 0),
            "12.8",
            ["scales by row from 12.9 on", "take cublas"],
        ),
    ],
)
def test_other_gpus_and_an_older_cuda_are_refused(name, operands, capability, cuda, words, installed):
    installed(capability, cuda)
    refused(lambda: CONTENDERS[name].load().require(*operands()), ValueError, words)


def test_what_is_multiplied_is_not_refused(installed, monkeypatch):
    installed()
    taken = {
        "persistent decode": [(X, EIGHT), by_row(16, 16, 32)],
        "warpgroup": [by_row(16, 16, 32)],
        "cublas": [by_row(8, 144, 384)],
        "blockwise warpgroup_blockwise": [by_block(1, 144, 80)],
    }
    for names, several in taken.items():
        for name, operands in itertools.product(names.split(), several):
            CONTENDERS[name].load().require(*operands)
    called = SimpleNamespace(fp8_gemm_nt=lambda x, w, out: out.fill_(len(x) + len(w)))
    monkeypatch.setitem(sys.modules, "deep_gemm", called)
    x, w, _, of_blocks = by_block(1, 144, 640)
    assert (vendor.deep_gemm.run(x, w, contract.empty_out(x, w), of_blocks) == 4).all()


@pytest.mark.parametrize("kernel", ["blockwise", "warpgroup_blockwise"])
def test_a_tile_of_several_blocks_is_refused(kernel):
    config = load(f"{module_of(kernel)}:Config")(128, 256, 128, 8, 2)
    x, w, _, of_rows = by_row(8, 144, 256)
    with pytest.raises(ValueError, match=r"128x256x128 .* block .*128x128"):
        CONTENDERS[kernel].load().prepare(x, w, half(8, 144), config, of_rows)


def test_decode_refuses_many_rows_and_takes_any_out(gpu_of):
    gpu_of(9, 0)
    refused(partial(decode.require, half(65, 8), W), ValueError, ["M=65", "up to 64", "kernels.persistent"])
    refused(partial(decode.require, *TMA_REFUSED["K"][0]()), ValueError, ["K=100"])
    decode.require(half(64, 8), W, BUFFER[:, 1:7])  # out needs no alignment


@pytest.mark.parametrize(
    ("where", "rows", "able", "picked"),
    [
        ("cpu", 256, ("decode", "persistent", "warpgroup"), "tiled"),
        ("cuda", 64, ("decode", "persistent", "warpgroup"), "decode"),
        ("cuda", 255, ("persistent", "warpgroup"), "persistent"),
        ("cuda", 256, ("persistent", "warpgroup"), "warpgroup"),
        ("cuda", 256, ("persistent",), "persistent"),
        ("cuda", 255, ("blockwise", "warpgroup_blockwise"), "blockwise"),
        ("cuda", 256, ("blockwise", "warpgroup_blockwise"), "warpgroup_blockwise"),
    ],
)
def test_matmul_picks(where, rows, able, picked, monkeypatch):
    monkeypatch.setattr(Contender, "why_not", lambda self, *operands: None if self.name in able else "no TMA")
    monkeypatch.setattr(Contender, "load", lambda self: lambda *operands: self.name)
    x = MagicMock(is_cuda=where == "cuda", ndim=2)
    x.__len__.return_value = rows
    assert kernels.matmul(x, None) == picked


def test_without_triton_or_a_part_of_it_others_work_and_ours_say_what_is_missing(elsewhere):
    for message in elsewhere(without_triton.reasons, "triton").values():
        assert "needs Triton 3.7 to 3.9: " in message
        assert message.endswith("; install it (on Linux) or take the contender 'torch' or 'cublas'")
    without_gluon = elsewhere(without_triton.reasons, "triton.experimental.gluon.language.nvidia.hopper")
    assert without_gluon["warpgroup"].startswith("kernels.warpgroup:matmul needs Triton 3.7 to 3.9")
    assert without_gluon["persistent"].startswith("x is on cpu")


def test_the_registry_lists_contenders_and_finds_each(monkeypatch):
    def names(device, timed, m=65, dtype="bf16", asked=None):
        options = SimpleNamespace(contenders=asked, users=(), device=device, timed=timed)
        return Planner(options).names(SimpleNamespace(m=m, dtype=dtype))

    ours = ["decode", "persistent", "tiled", "warpgroup"]
    libraries = ["cublas", "cublas_again", "cublaslt_best"]
    assert names("cpu", timed=True) == ["torch", "numpy"]
    assert names("cuda", timed=True) == [*libraries, *ours]
    assert names("cuda", timed=True, m=64) == [*libraries, "decode", "persistent"]  # the others cannot win there
    assert names("cuda", timed=True, dtype="fp8_block")[3:] == ["deep_gemm", *ours, "blockwise", "warpgroup_blockwise"]
    assert names("cuda", timed=True, m=64, dtype="fp32") == [*libraries, *ours]  # which decode does not take
    assert names("cuda", timed=True, m=1, asked=("tiled", "warpgroup")) == ["tiled", "warpgroup"]
    assert names("cpu", timed=False, m=1) == ["torch", "numpy", *ours]
    assert names("cuda", timed=False, m=1) == [*libraries, *ours]
    for name in ours:
        assert CONTENDERS[name].load().name == name
    assert all(callable(load(path)) for path in BESIDE_LINK.values())
    monkeypatch.setattr(registry, "may_be_hopper", lambda: False)  # which cannot run what the others lose to
    assert names("cuda", timed=True, m=64) == [*libraries, *ours]


@pytest.mark.parametrize(
    ("first", "second", "overlaps"),
    [((0, 2), (10, 3), True), ((26, 2), (0, 3), False), ((6, 1), (0, 3), True)],
)
def test_what_begins_where_another_ends_is_no_overlap(first, second, overlaps):
    """Of matrices of 6 columns, 10 apart, that begin there and have so many rows; also between rows of one another."""
    storage = half(100)
    a, b = (storage.as_strided((rows, 6), (10, 1), start) for start, rows in (first, second))
    assert overlap(a, b) == overlaps
    assert not overlap(a, b.clone())


def test_a_gradient_is_fine_where_none_is_recorded():
    with torch.no_grad():
        validate(X, GROWING)
