"""Every refusal names the value, the limit and the way out; and `matmul` picks the right kernel of ours."""

import re
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import without_triton
from torch.utils import cpp_extension

import kernels
from kernels import contract, decode, hopper, persistent, registry, ring, rivals, tiled, vendor
from kernels.contract import MAX_SIZE, overlap, validate
from kernels.registry import BESIDE_LINK, CONTENDERS, Contender, Planner, load, module_of


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


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

SMALL, LONG = (fp8(4, 16), fp8(6, 16)), (fp8(4, 256), fp8(136, 256))
OF_X, OF_W = scales(4, 6)

# name: (operands, error, what the message says: value, limit, way out)
REFUSED = {
    "float64": ((X.double(), W), TypeError, r"x is torch.float64.* bfloat16, float16 and float32.*\.to\(\)"),
    "unequal dtypes": ((X, W.float()), TypeError, r"w is torch.float32.* x is torch.float16.*\.to\(\)"),
    "rank of x": ((half(2, 4, 8), W), ValueError, r"x has shape \[2, 4, 8\].* rank 2.*\.flatten\(0, -2\)"),
    "device of w": ((X, meta((6, 8), (8, 1))), ValueError, r"w is on meta.* x is on cpu.*\.to\(\)"),
    "size": ((meta((1, 2**31), (1, 1)), W), ValueError, f"{2**31}.* {MAX_SIZE}.* split"),
    "inner sizes": ((X, half(8, 6)), ValueError, r"K=8.* K=6.* w\.T\.contiguous\(\)"),
    "last stride": ((half(8, 4).T, W), ValueError, r"x has a last stride of 4, 1 is needed.*\.contiguous\(\)"),
    "gradient": ((X, GROWING), ValueError, r"w requires a gradient.*no_grad\(\).*\.detach\(\)"),
    "out shape": ((X, W, half(6, 4)), ValueError, r"\[6, 4\].* \[4, 6\].* out=None"),
    "out overlaps itself": ((X, W, strided((4, 6), 5)), ValueError, "row stride of 5.* N=6.* torch.empty"),
    "out touches w": ((X, BUFFER[:8, :8], BUFFER[4:8, 7:15]), ValueError, "shares memory with w.* its own"),
    "no scales": (SMALL, TypeError, r"needs scales.*x_scales\[4, 1\], w_scales\[1, 6\]"),
    "scales of fp16": ((X, W, None, (OF_X, OF_W)), TypeError, "float16, which has no scales.* beside fp8"),
    "out of fp8": (
        (*SMALL, half(4, 6), (OF_X, OF_W)),
        TypeError,
        r"out is torch.float16.*float8_e4m3fn, beside which out is torch.bfloat16.*\.to\(\)",
    ),
    "dtype of scales": (
        (*SMALL, None, (OF_X.half(), OF_W)),
        TypeError,
        r"x_scales is torch.float16, scales are float32.*\.to\(\)",
    ),
    "shape of scales": (
        (*SMALL, None, (OF_X, OF_W.T)),
        ValueError,
        r"w_scales has shape \[6, 1\].* needs \[1, 6\], and both by block \[4, 1\] and \[1, 1\].* reshape",
    ),
    "rows of scales by block": (
        (*LONG, None, (torch.ones(4, 2), torch.ones(2, 2))),
        ValueError,
        r"x_scales by block lie by columns.*\.T\.contiguous\(\)\.T",
    ),
    "device of scales": (
        (*SMALL, None, (OF_X.to("meta"), OF_W)),
        ValueError,
        r"x_scales is on meta but x is on cpu.*\.to\(\)",
    ),
    "strided scales": (
        (*SMALL, None, (torch.ones(4, 2)[:, :1], OF_W)),
        ValueError,
        r"x_scales is not contiguous.*\.contiguous\(\)",
    ),
}

# name: (operands, what the message says)
TMA_REFUSED = {
    "K": ((half(4, 100), half(8, 100)), "x has K=100 and a row stride of 100, not a multiple of 8.* kernels.tiled"),
    "out": ((X, EIGHT, strided((4, 8), 12)), "out has N=8 and a row stride of 12.* kernels.tiled"),
    "expanded x": ((X[:1].expand(4, 8), EIGHT), r"x has a row stride of 0.* K=8.*\.contiguous\(\).* kernels.tiled"),
    "address of w": ((X, BUFFER[:4, 4:12]), r"w starts 8 bytes past a multiple of 16.*\.clone\(\).* kernels.tiled"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_the_contract(case):
    operands, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as caught:
        validate(*operands)
    for run in (kernels.matmul, *(contender.load() for contender in CONTENDERS.values())):
        with pytest.raises(error, match=re.escape(str(caught.value))):
            run(*operands)
    for contender in CONTENDERS.values():
        assert contender.why_not(*operands) == str(caught.value)


@pytest.fixture
def gpu_of(monkeypatch):
    """`gpu_of(major, minor)`: as if tensors were on a GPU of that compute capability, and kernels compiled."""
    monkeypatch.setattr(hopper, "require_runnable", lambda x: None)
    monkeypatch.setattr(hopper, "interpreted", lambda: False)
    return lambda *version: monkeypatch.setattr(hopper, "capability", lambda device: version)


@pytest.mark.parametrize("case", TMA_REFUSED)
def test_refusals_of_tma(case, gpu_of):
    gpu_of(9, 0)
    operands, message = TMA_REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        persistent.matmul(*operands)
    assert CONTENDERS["persistent"].why_not(*operands) == str(caught.value)
    validate(*operands)  # the contract itself allows it, and so does tiled


@pytest.mark.parametrize(
    ("interpreted", "dtype", "error", "message"),
    [
        (False, torch.float16, ValueError, "x is on cpu.* CUDA device.*TRITON_INTERPRET=1.* never timed"),
        (True, torch.bfloat16, TypeError, "x is torch.bfloat16.* float16 or float32.*TRITON_INTERPRET"),
    ],
)
def test_a_compiled_kernel_refuses_the_cpu_and_the_interpreter_bf16(interpreted, dtype, error, message, monkeypatch):
    monkeypatch.setattr(contract, "interpreted", lambda: interpreted)
    for module in (tiled, persistent, decode):
        with pytest.raises(error, match=message):
            module.matmul(X.to(dtype), EIGHT.to(dtype))


def by_row(m: int, n: int, k: int) -> tuple:
    return fp8(m, k), fp8(n, k), None, scales(m, n)


def by_block(m: int, n: int, k: int) -> tuple:
    return fp8(m, k), fp8(n, k), None, contract.empty_scales(fp8(m, k), fp8(n, k), by_block=True)


@pytest.fixture
def installed(gpu_of, monkeypatch):
    """`installed(capability, cuda)`: as if tensors were on such a GPU, under that CUDA, and DeepGEMM was missing."""
    monkeypatch.setattr(vendor, "require_device", lambda kind, x: None)
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    monkeypatch.setattr(tiled, "require_runnable", lambda x: None)
    monkeypatch.setattr(ring, "interpreted", lambda: False)

    def install(capability: tuple[int, int], cuda: str) -> None:
        gpu_of(*capability)
        monkeypatch.setattr(vendor, "capability", lambda device: capability)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return install


H100, OLDER_CUDA = ((9, 0), "13.0"), ((9, 0), "12.8")
RTX_4090, A100 = ((8, 9), "13.0"), ((8, 0), "13.0")
OF_ROWS = "{} takes no scales by block.* take blockwise"
OF_BLOCKS = "{} takes fp8 with scales by block alone.* take persistent"
NO_FP8 = "x is torch.float8_e4m3fn, which {} does not multiply; take cublas, persistent.* bfloat16"


@pytest.mark.parametrize(
    ("where", "names", "operands", "message"),
    [
        (
            H100,
            "persistent decode",
            (X.float(), EIGHT.float()),
            "float32, {} takes bfloat16 and float16.* kernels.tiled",
        ),
        (H100, "tiled torch inductor decode_ring", by_row(16, 16, 32), NO_FP8),
        (H100, "persistent decode warpgroup", by_block(8, 144, 256), OF_ROWS),
        (H100, "blockwise warpgroup_blockwise", by_row(8, 144, 256), OF_BLOCKS),
        (H100, "cublas", by_row(16, 16, 24), "K=24.* 16"),
        (H100, "cublas", by_block(8, 144, 640), "K=640, 5 blocks.* a multiple of 4.* take blockwise"),
        (H100, "deep_gemm", by_row(8, 144, 384), "fp8 with scales by block.* are fp8; take cublas"),
        (H100, "quack quack_tuned", by_row(8, 144, 384), "bf16 and fp16, and these operands are fp8; take cublas"),
        (H100, "quack deep_gemm", (bf16(8, 20), bf16(12, 20)), "N=12, no multiple of 8, .* take cublas"),
        (
            H100,
            "quack quack_tuned",
            (half(8, 16), half(8, 16)),
            r"quack is not installed: pip install .*rivals",
        ),
        (H100, "deep_gemm", by_block(1, 144, 640), r"DeepGEMM is not installed: pip install -e '.\[rivals\]'"),
        (H100, "deep_gemm", (half(8, 16), half(8, 16)), "these operands are fp16; take cublas"),
        (A100, "quack deep_gemm", (bf16(8, 16), bf16(8, 16)), r"8.0, \w+ needs 9.0 \(Hopper\); take cublas"),
        (RTX_4090, "persistent", (X, EIGHT), "capability 8.9, persistent needs 9.x.* kernels.tiled"),
        (RTX_4090, "persistent", by_row(16, 16, 32), r"needs 9.x \(Hopper\); cast x and w to bfloat16"),
        (A100, "cublas", by_row(16, 16, 32), "capability 8.0, torch._scaled_mm needs 9.0.* bfloat16"),
        (OLDER_CUDA, "cublas", by_block(8, 144, 512), "CUDA is 12.8.* from 12.9 on.* take blockwise"),
        (OLDER_CUDA, "cublaslt_best", by_row(8, 144, 384), "scales by row from 12.9 on.* take cublas"),
    ],
)
def test_a_gpu_is_refused_what_a_contender_does_not_multiply_there(where, names, operands, message, installed):
    installed(*where)
    for name in names.split():
        with pytest.raises((TypeError, ValueError), match=message.format(name)):
            CONTENDERS[name].load().require(*operands)


def test_rivals_are_called_by_their_own_names(monkeypatch):
    def gemm(x, w, out, tuned):
        return out.copy_(x @ w + tuned)

    deep_gemm = SimpleNamespace(
        fp8_gemm_nt=lambda x, w, out: out.fill_(len(x) + len(w)), bf16_gemm_nt=lambda x, w, out: out.copy_(x @ w.T)
    )
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    monkeypatch.setitem(sys.modules, "quack", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", SimpleNamespace(gemm=gemm))
    x, w, _, of_blocks = by_block(1, 144, 640)
    assert (rivals.deep_gemm.run(x, w, contract.empty_out(x, w), of_blocks) == 4).all()
    x, w = torch.ones(3, 8), torch.ones(5, 8)
    assert (rivals.deep_gemm.run(x, w, torch.empty(3, 5)) == 8).all()
    assert (rivals.quack.run(x, w, torch.empty(3, 5)) == 8).all()
    assert (rivals.quack_tuned.run(x, w, torch.empty(3, 5)) == 9).all()


@pytest.mark.parametrize(
    ("release", "refusal"),
    [("12.9", ""), ("13.0", ""), ("12.8", "12.9 or newer, and there is 12.8"), ("", "there is none in CUDA_HOME")],
)
def test_deep_gemm_asks_for_the_nvcc_that_it_compiles_with(release, refusal, installed, monkeypatch, tmp_path):
    installed(*H100)
    monkeypatch.setattr(rivals, "find_spec", lambda name: name)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    rivals.nvcc.cache_clear()
    if release:
        tool = tmp_path / "bin" / "nvcc"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.41'\n")
        tool.chmod(0o755)
    assert refusal in (CONTENDERS["deep_gemm"].why_not(bf16(8, 16), bf16(8, 16)) or "")
    rivals.nvcc.cache_clear()


@pytest.mark.parametrize("kernel", ["blockwise", "warpgroup_blockwise"])
def test_a_tile_of_several_blocks_is_refused(kernel):
    config = load(f"{module_of(kernel)}:Config")(128, 256, 128, 8, 2)
    x, w, _, of_rows = by_row(8, 144, 256)
    with pytest.raises(ValueError, match=r"128x256x128 .* block .*128x128"):
        CONTENDERS[kernel].load().prepare(x, w, half(8, 144), config, of_rows)


RING = decode.Config(16, 64, 64, num_warps=4, num_stages=4)
FEW, MANY = half(16, 64), half(17, 64)


@pytest.mark.parametrize(
    ("name", "x", "config", "message"),
    [
        (
            "persistent",
            FEW,
            persistent.Config(64, 32, 32, 4, 2, subtile=4),
            "subtile=4, .* in 1 or 2 parts; change",
        ),
        ("decode", MANY, RING, "M=17 rows, the tile has room for 16; change the configuration"),
        ("decode", FEW, RING.changed(split=3), "split=3: whole tiles are 1, tiles cut along k are 2; 0 chooses"),
        ("decode_ring", MANY, RING, "M=17 rows, the tile has room for 16; change the configuration"),
        ("decode_ring", FEW, RING.changed(num_warps=8), "64 rows of w, 3 stages or more and a split of 0 to 2; change"),
        ("decode_ring", FEW, RING.changed(block_n=96), "64 rows of w"),
        ("decode_ring", FEW, RING.changed(num_stages=2), "3 stages or more"),
        ("decode_ring", FEW, RING.changed(split=3), "a split of 0 to 2"),
    ],
)
def test_a_configuration_that_a_kernel_cannot_take_is_refused(name, x, config, message):
    with pytest.raises(ValueError, match=message):
        CONTENDERS[name].load().prepare(x, half(8, 64), half(len(x), 8), config)


def test_the_ring_is_for_no_interpreter():
    with pytest.raises(ValueError, match=r"Gluon, which decode_ring is written in, .* use kernels\.decode, or"):
        CONTENDERS["decode_ring"].load()(FEW, half(8, 64))


def test_decode_refuses_many_rows_and_takes_any_out(gpu_of):
    gpu_of(9, 0)
    with pytest.raises(ValueError, match=r"M=65.* up to 64.*kernels\.persistent"):
        decode.require(half(65, 8), W)
    with pytest.raises(ValueError, match="K=100"):
        decode.require(*TMA_REFUSED["K"][0])
    decode.require(half(64, 8), W, BUFFER[:, 1:7])  # out needs no alignment


@pytest.mark.parametrize(
    ("where", "rows", "able", "picked"),
    [
        ("cpu", 256, ("decode", "persistent", "warpgroup"), "tiled"),
        ("cuda", 64, ("decode", "persistent", "warpgroup"), "decode"),
        ("cuda", 255, ("persistent", "warpgroup"), "persistent"),
        ("cuda", 256, ("persistent", "warpgroup"), "warpgroup"),
        ("cuda", 256, ("persistent",), "persistent"),
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
    assert names("cuda", timed=False, m=1) == [*libraries, *ours]
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
