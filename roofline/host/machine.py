"""This machine: chip, sizes, versions. Never a host name. Also decides whether a GPU can be used."""

import ctypes
import functools
import os
import platform
import re
import warnings
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from roofline.host import container, telemetry
from roofline.host.container import affinity, cores
from roofline.host.environment import VARIABLES
from roofline.theory.chips import chip_of_device
from roofline.theory.floor import CPU_FLOP_PER_CYCLE

RECORDED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", *VARIABLES["threads"], *VARIABLES["cpu"])
"""Environment variables that set how many threads a library runs, and how long they spin, begin with these."""

RECORDED_OF_GPU = ("CUDA_", "CUBLAS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", *VARIABLES["gpu"])
"""Those that change what a GPU computes, and how fast, begin with these."""

TF32 = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Those that have cuBLAS multiply fp32 in TF32."""

CONNECTIONS = 32
"""CUDA_DEVICE_MAX_CONNECTIONS of a run, which the root conftest sets."""

NATIVE_ATOMIC = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED (cuda.h)."""

PACKAGES = ("torch", "triton", "numpy", "pytest", "pytest-benchmark", "pandas", "matplotlib", "seaborn")


def choose_device(wanted: str, timed: bool) -> str:
    """`cuda` or `cpu`, where `wanted` is one of them or `auto`. Whether torch can use the GPU, the first worker of a
    timed run says (`unusable_gpu`).

    Raises ValueError for a GPU that is not there, or that plain tests cannot use; where Triton's interpreter is
    switched on while something is to be timed, or to run on a GPU; where a GPU has too few hardware queues for the
    streams of links; and where launches block on one that is timed.
    """
    switch = os.environ.get("TRITON_INTERPRET", "").lower()
    is_interpreting = switch in {"1", "true", "yes", "on", "y"}
    if is_interpreting and (timed or wanted == "cuda"):
        raise ValueError("TRITON_INTERPRET is set: interpreted kernels are never timed, nor run on a GPU; unset it")
    if wanted == "cpu" or is_interpreting:
        return "cpu"
    if gpu_driver() is None:
        if wanted == "cuda":
            raise ValueError("--ffn-device cuda: this machine has no NVIDIA GPU; leave it out to use the CPU")
        return "cpu"
    if not timed and (problem := unusable_gpu()):
        raise ValueError(problem)
    _refuse_queues(timed)
    return "cuda"


def _refuse_queues(timed: bool) -> None:
    """Raises ValueError where CUDA's environment variables would keep launches from running beside one another."""
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", str(CONNECTIONS))
    if not queues.isdecimal() or int(queues) < CONNECTIONS:
        raise ValueError(
            f"CUDA_DEVICE_MAX_CONNECTIONS is set to {queues!r}, and {CONNECTIONS} is the least: a copy would stand in "
            "the queue behind the kernel that waits for it; unset it, or set that many"
        )
    if timed and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        raise ValueError(
            "CUDA_LAUNCH_BLOCKING is set: each launch would wait for its kernel's end, and gates open once all of "
            "a sample is launched; unset it"
        )


TORCH_INDEX = "https://download.pytorch.org/whl/cu126"
"""Here is torch for CUDA 12.6, for drivers from 525 on. The default build of torch 2.12 and 2.13 is for CUDA 13.0, of
which the driver is 580 or newer."""


def refuse_tf32(device: str, dtypes: tuple[str, ...]) -> None:
    """Raises ValueError where an environment variable has a GPU multiply in TF32 what is measured as fp32."""
    if device != "cuda" or "fp32" not in dtypes:
        return
    for variable in TF32:
        value = os.environ.get(variable, "")
        if value not in ("", "0"):
            raise ValueError(
                f"{variable} is set to {value!r}, with fp32 among --ffn-dtype: cuBLAS would multiply it in TF32, 10 of "
                "its 23 bits; unset it, or leave fp32 out"
            )


WAYS_OUT = {
    "driver on your system is too old": (
        f"update the driver to 580 or newer, or take a torch for CUDA 12: make bench TORCH_INDEX={TORCH_INDEX} "
        f"(in an environment of your own: pip install --force-reinstall torch --index-url {TORCH_INDEX})"
    ),
    "Error 802": "start the service nvidia-fabricmanager, of the driver's own version, and wait until it is done",
    "Error 803": "reboot: the driver's library is of another version than its module",
    "Error 804": "take the compat library of CUDA out of LD_LIBRARY_PATH, or update the driver",
    "no CUDA-capable device": "check CUDA_VISIBLE_DEVICES, and that the container was given the GPU",
    "busy or unavailable": "end the process that has the card to itself, or have its compute mode set to default",
    "version mismatch": "reboot: the driver's library is of another version than its module",
    "CPU-only build": "install a CUDA build of torch (see pytorch.org for the one that fits this driver)",
}
"""What CUDA, torch and NVML say of a GPU that they cannot use -> the way out. Seen in IEIT-Yuan/Yuan-2.0 65 (too old),
pytorch 35710 (802) and 100691 (busy), and rapidsai/dask-cuda 949 (version mismatch); 803 and 804 are cudaError_t's."""


def way_out(words_of_error: str) -> str:
    """The way out where CUDA, torch or NVML had the `words_of_error`; "" where none is known."""
    for words, help in WAYS_OUT.items():
        if words in words_of_error:
            return help
    return ""


def unusable_gpu() -> str | None:
    """Why torch cannot use the GPU of this machine, with the way out; None if it can, or if there is no GPU."""
    import torch

    driver = gpu_driver()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()  # which warns of why not
    if driver is None or usable:
        return None
    warned = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU-only build"
    for warning in caught:
        warned += f"; {' '.join(str(warning.message).split())}"
    helps = way_out(warned) or "check CUDA_VISIBLE_DEVICES, or install a torch that fits the driver (see pytorch.org)"
    return (
        f"this machine has an NVIDIA GPU (driver {driver}), but torch {torch.__version__} ({warned}) cannot use it: "
        f"{helps}; or measure the CPU with --ffn-device cpu"
    )


def native_atomics(gpu: int, peer: int) -> bool:
    """True where the atomics of `gpu` are atomic in the memory of GPU `peer`, which over PCIe they are not, though it
    reads there. The driver says so; torch does not."""
    answer = ctypes.c_int()
    library = ctypes.CDLL("libcuda.so.1")
    return not library.cuDeviceGetP2PAttribute(ctypes.byref(answer), NATIVE_ATOMIC, gpu, peer) and bool(answer.value)


def gpu_driver() -> str | None:
    """The NVIDIA driver's version where a GPU is present, as NVML says, or else /proc. None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion()) if pynvml.nvmlDeviceGetCount() else None
    except Exception:  # no package, no library, no device: NVML has a type for each
        proc = Path("/proc/driver/nvidia/version")
        if not proc.exists() or not list(Path("/dev").glob("nvidia[0-9]*")):
            return None
        number = re.search(r"(?<!\S)\d\S*\.\S*", proc.read_text())
        return number[0] if number else "unknown"


def ptxas_version(arch: int) -> str | None:
    """The version of the ptxas by which Triton assembles for compute capability `arch` (90 for 9.0), as 12.8.93; None
    where Triton is absent, or does not say."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas_version

        text = get_ptxas_version(arch)
    except Exception:  # no package, another backend, no ptxas where TRITON_PTXAS_PATH points: each has its own type
        return None
    version = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    return version and version[1]


@functools.cache
def worker_bytes(device: str) -> int:
    """The bytes that a worker may take of the memory of `device`."""
    return container.worker_bytes() if device == "cpu" else describe(device)["memory_bytes"]


def describe(device: str) -> dict:
    """Chip, datasheet, sizes and versions of `device` (`cpu` or `cuda`) as plain values, ready for JSON."""
    import torch

    info = {
        "device": device,
        "source": "gpu" if device == "cuda" else "cpu",
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
        "environment": recorded(RECORDED + RECORDED_OF_GPU if device == "cuda" else RECORDED),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        chip = chip_of_device(properties.name)
        datasheet = asdict(chip) if chip else None
        if datasheet:
            datasheet.pop("device_names")
        return info | {
            "chip": properties.name,
            "datasheet": datasheet,
            "sms": properties.multi_processor_count,
            "max_sm_clock_mhz": telemetry.highest_sm_clock_mhz(),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cache_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "driver": gpu_driver(),
            "cuda": torch.version.cuda,
            "ptxas": ptxas_version(10 * properties.major + properties.minor),
        }
    return info | {
        "chip": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "datasheet": None,
        "threads": torch.get_num_threads(),
        "cores": cores(),
        "affinity": affinity(),
        "instruction_sets": [name for name in CPU_FLOP_PER_CYCLE if name in _cpuinfo("flags|Features").split()],
        "cache_bytes": _last_level_cache_bytes(),
        "memory_bytes": container.memory_bytes(),
    }


def synchronize(device: str) -> None:
    """Wait for all that was enqueued."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def anonymous(text: str) -> str:
    """`text` without this host's name and the path of its user's home, as it may be published."""
    for secret, stand_in in ((str(Path.home()), "~"), (platform.node(), "<host>")):
        if len(secret) > 2:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", stand_in, text)
    return text


def recorded(prefixes: tuple[str, ...]) -> dict[str, str]:
    """The environment variables that begin with one of `prefixes`."""
    variables = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(prefixes):
            variables[name] = anonymous(value)
    return variables


def versions() -> dict[str, str]:
    """{package: its version} of those that are installed."""
    versions = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _cpuinfo(field: str) -> str:
    """The value of a `field`, a pattern, that Linux has for the first core; "" where it has none."""
    with suppress(OSError):
        if line := re.search(rf"^(?:{field})\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return line[1].strip()
    return ""


def _last_level_cache_bytes() -> int:
    """The size of the largest cache that Linux names for core 0; 32 MiB where it names none."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = re.fullmatch(r"(\d+)([KMG])\s*", path.read_text())
        if size:
            largest = max(largest, int(size[1]) * units[size[2]])
    return largest or 32 * 2**20
