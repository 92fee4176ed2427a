"""What goes into a pack and comes out of it, on a made-up Triton. tests/collectives/test_dry_run.py has the cache's
entries."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kernels.experiments import trial
from results import pack, unpack, visit

TAG = unpack.TAG

KEPT = {
    "triton/__init__.py",
    "triton/_C/libtriton.so",
    "triton/backends/amd/compiler.py",
    "triton/backends/nvidia/bin/nvdisasm",
    "triton/backends/nvidia/bin/ptxas",
    "triton/backends/nvidia/driver.c",
    "triton/backends/nvidia/include/cuda.h",
    "triton/backends/nvidia/lib/libdevice.10.bc",
    "triton-9.9.9.dist-info/METADATA",
    "triton-9.9.9.dist-info/WHEEL",
}
LEFT_OUT = {
    "bin/proton",
    "triton/FileCheck",
    "triton/_C/libproton.so",
    "triton/backends/amd/include/hip/hip_runtime.h",
    "triton/backends/amd/lib/ockl.bc",
    "triton/backends/nvidia/bin/ptxas-blackwell",
    "triton/backends/nvidia/include/crt/mma.h",
    "triton/backends/nvidia/lib/cupti-blackwell/libcupti.so",
    "triton/backends/nvidia/lib/cupti/libcupti.so",
    "triton/include/triton/Analysis/Utility.h",
    "triton/instrumentation/libGPUInstrumentationTestLib.so",
    "triton/plugins/libMLIRDialectPlugin.so",
    "triton/profiler/proton.py",
}


def made_up(tree):
    for name in KEPT | LEFT_OUT:
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"Tag: {TAG}-{TAG}-linux\n" if name.endswith("WHEEL") else name)
        file.chmod(0o755 if "/bin/" in name else 0o644)
    return tree


@pytest.fixture
def tree(tmp_path):
    """What is kept of a made-up Triton 3.8, and a compile cache of one entry."""
    tree = made_up(tmp_path / "tree")
    pack.leave_out(tree, "3.8.0")
    entry = tree / "cache" / "ENTRY"
    entry.mkdir(parents=True)
    (entry / "a_kernel.json").write_text("{}")
    (entry / "a_kernel.cubin").write_bytes(b"machine code")
    return tree


@pytest.fixture
def packed(tree, tmp_path):
    path = tmp_path / "pack.tar.xz"
    assert pack.archive(tree, path) == path.stat().st_size
    return path


def test_what_no_hopper_needs_is_left_out(tree):
    assert {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()} - KEPT == {
        "cache/ENTRY/a_kernel.json",
        "cache/ENTRY/a_kernel.cubin",
    }
    assert all((tree / name).is_file() for name in KEPT)


def test_from_triton_3_9_on_a_hopper_needs_what_is_called_blackwells_assembler(tmp_path):
    tree = made_up(tmp_path / "tree")
    pack.leave_out(tree, "3.9.0")
    kept = {path.name for path in (tree / "triton/backends/nvidia/bin").iterdir()}
    assert kept == {"nvdisasm", "ptxas-blackwell"}


def test_what_is_packed_is_unpacked_and_entries_name_their_new_place(tree, packed, tmp_path):
    place = tmp_path / "place"
    environment = unpack.unpack(packed, place)
    inspected = str(place / "inspected.json")
    paths = {"PYTHONPATH": str(place), "TRITON_CACHE_DIR": str(place / "cache"), trial.INSPECTED: inspected}
    paths |= {"QUACK_CACHE_DIR": str(place / "quack")}
    assert environment == paths
    for name in KEPT:
        assert (place / name).read_bytes() == (tree / name).read_bytes()
        assert (place / name).stat().st_mode == (tree / name).stat().st_mode  # programs stay executable
    entry = place / "cache" / "ENTRY"
    group = json.loads((entry / "__grp__a_kernel.json").read_text())
    names = ("a_kernel.cubin", "a_kernel.json")
    assert group == {"child_paths": {name: str(entry / name) for name in names}}


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: whole[:-99] + b"?" + whole[-98:]])
def test_what_is_cut_off_or_changed_on_its_way_is_refused(packed, tmp_path, damage):
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(ValueError, match=r"pack\.tar\.xz is not as it was packed: .*; carry it again"):
        unpack.unpack(packed, tmp_path / "place")


def test_too_many_bytes_are_refused_with_the_limit(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "LIMIT_BYTES", 100)
    with pytest.raises(ValueError, match=r"has [\d,]{3,} bytes, the limit is 100: leave more out in results/pack\.py"):
        pack.archive(tree, tmp_path / "pack.tar.xz")


def test_a_folder_with_something_in_it_and_another_python_are_refused(tree, packed, tmp_path):
    with pytest.raises(ValueError, match="is not empty: name a folder of its own"):
        unpack.unpack(packed, tree)
    (tree / "triton-9.9.9.dist-info/WHEEL").write_text("Tag: cp27-cp27mu-linux\n")
    pack.archive(tree, packed)
    with pytest.raises(ValueError, match=rf"this Python is {TAG}, and triton-9\.9\.9\.dist-info is for another"):
        unpack.unpack(packed, tmp_path / "place")


def test_the_newest_triton_that_was_tried_is_packed_and_it_compiles_all_that_a_visit_takes():
    newest = pack.newest()
    assert f"triton=={newest}" in (pack.ROOT / "constraints-newest.txt").read_text().splitlines()
    assert all(visit.release(step.triton) <= visit.release(newest) for step in visit.STEPS)


def test_the_decoder_of_journals_is_packed_beside_triton(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(
        pack.subprocess, "run", lambda command, **_: commands.append(command) or SimpleNamespace(returncode=1)
    )
    with pytest.raises(ValueError, match=r"no wheel of triton==9\.9\.9 or msgspec=="):
        pack.install("9.9.9", tmp_path)
    ((*_, decoder),) = commands
    assert decoder in (pack.ROOT / "constraints.txt").read_text().splitlines()


def test_a_pack_is_unpacked_without_what_it_brings():
    code = "import sys; sys.modules['msgspec'] = None; import results.unpack, results.visit"
    subprocess.run([sys.executable, "-c", code], cwd=pack.ROOT, check=True)


def test_a_pack_and_the_checkout_without_reference_runs_travel_in_one_command():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=pack.ROOT, capture_output=True, check=True).stdout
    paths = [pack.ROOT / name.decode() for name in listed.split(b"\0")[:-1]]
    travel = [path for path in paths if path.exists() and "results/reference/" not in path.as_posix()]
    bytes_ = sum(path.stat().st_size for path in travel)
    assert bytes_ > 1e6
    assert bytes_ + pack.LIMIT_BYTES <= 64 * 2**20
