"""What `ncu --csv --page raw` prints, and a program that stands in for it.

Rows are made by hand, by the documented format and tables that others have published, until a run on a GPU brings real
ones: take them from there then, without the name of its host.
"""

import json
import os
import sys
from pathlib import Path

BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32"
METRICS = (
    *("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"),
    *(f"{BF16}.sum", f"{BF16}_sparsity_off.sum", f"{BF16}_sparsity_on.sum"),
)
MARKER = "at::cuda::<unnamed>::spin_kernel(long)"
NVJET = "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
REDUCE = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, 1>"
    "(cublasLt::cublasSplitKParams<float>, const float *, __nv_bfloat16 *)"
)

DENIED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
"""

BUSY = """==ERROR== An error was reported by the driver

==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is \
concurrently collecting profiling data.
==ERROR== The application returned an error code (9).
"""


def quoted(*cells) -> str:
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells)


def page(*kernels, metrics=METRICS, unit="byte") -> str:
    """Return what is printed of `kernels`, (name, its counts): rows below names and units, among other lines. Some
    versions have a column that nobody asked for."""
    about = "ID", "Host Name", "Kernel Name", "device__attribute_display_name"
    rows = [quoted(index, "127.0.0.1", name, "NVIDIA H200", *cells) for index, (name, *cells) in enumerate(kernels)]
    units = quoted(*[""] * len(about), *[unit if "bytes" in metric else "" for metric in metrics])
    return "\n".join(["==PROF== Profiling", '==WARNING== "quoted" noise', quoted(*about, *metrics), units, *rows, ""])


FAKE = f"""#!/bin/sh
case $1 in
    --version) echo "Version 2025.1.1.0 (build 35528883) (public-release)" ;;
    --query-metrics) echo "{" Counter ".join(name.partition(".")[0] for name in METRICS[:4])}" ;;
    *) exec {sys.executable} -c "import ncu_sample; ncu_sample.count()" "$@" ;;
esac
"""


def count() -> None:
    """Be the tool, and the share that it is to run: print two kernels for each call, the marker and its own."""
    from roofline.measure import child, request, share

    *arguments, folder = sys.argv[1:]
    log, metrics = (arguments[arguments.index(option) + 1] for option in ("--log-file", "--metrics"))
    with open(os.environ["FAKE_NCU_LOG"], "a") as asked:
        asked.write(json.dumps([*arguments, "LC_ALL=" + os.environ["LC_ALL"]]) + "\n")
    counts, kernels = dict(zip(METRICS, ("100,000", "20,000", "400,000"), strict=False)), []

    def at(self, step, shape="", at=share.Share.at, **about):
        if step == request.Step.CALL:
            cells = [counts.get(metric, "n/a") for metric in metrics.split(",")]
            kernels.extend([(MARKER, *["0"] * len(cells)), (f"{about['name']}_kernel", *cells)])
        at(self, step, shape, **about)

    share.Share.at = at
    child.main(Path(folder))
    Path(log).write_text(page(*kernels, metrics=metrics.split(",")))
