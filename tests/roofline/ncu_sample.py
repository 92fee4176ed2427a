"""What `ncu --csv --page raw` prints, and a program that stands in for it.

RAW is made by hand, by the documented format and tables that others have published, until a run on a GPU brings a real
one: take it from there then, without the name of its host. It holds three calls, each after a marker: a matmul of one
kernel, one with split-K, which is three with its marker, and one whose tensor operations come in two parts only.
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
ABOUT = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC"),
)
MARKER = "at::cuda::<unnamed>::spin_kernel(long)"
NVJET = "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
REDUCE = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, 1>"
    "(cublasLt::cublasSplitKParams<float>, const float *, __nv_bfloat16 *)"
)


def quoted(*cells) -> str:
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells)


def row(index, kernel, *values) -> str:
    about = (index, 4711, "python3.12", "127.0.0.1", kernel, 1, 7, "(384, 1, 1)", "(132, 1, 1)", 0, "9.0")
    return quoted(*about, *values)


HEADER = quoted(*ABOUT, *METRICS)
UNITS = quoted(*[""] * len(ABOUT), "byte", "byte", "byte", "", "", "")
NONE = ("0", "0", "6,144", "0", "0", "0")

RAW = "\n".join(
    [
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
        '==PROF== Profiling "spin_kernel" - 0: 0%....50%....100% - 3 passes',
        '==PROF== Profiling "persistent_kernel" - 1: 0%....50%....100% - 3 passes',
        '==WARNING== "quoted" noise between, as some versions print it',
        "==PROF== Disconnected from process 4711",
        HEADER,
        UNITS,
        row(0, MARKER, *NONE),
        row(1, "persistent_kernel", "352,321,536", "54,525,952", "2,415,919,104", *["893,353,197,568"] * 2, "0"),
        row(2, MARKER, *NONE),
        row(3, NVJET, "218,103,808.00", "1,024", "230,686,720", *["1,744,830,464"] * 2, "0"),
        row(4, REDUCE, "65,536", "13,312", "131,072", "0", "0", "0"),
        row(5, MARKER, *NONE[:3], "n/a", "0", "0"),
        row(6, "tiled_kernel", "218,103,808", "13,312", "230,686,720", "n/a", "13,958,643,712", "0"),
        "",
    ]
)

DENIED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 4711
==WARNING== No kernels were profiled.
"""

BUSY = """==ERROR== An error was reported by the driver

==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is \
concurrently collecting profiling data. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for \
more details.
==ERROR== Failed to profile "spin_kernel" in process 7508
==PROF== Trying to shutdown target application
==ERROR== The application returned an error code (9).
==ERROR== An error occurred while trying to profile.
==WARNING== No kernels were profiled.
"""

FAKE = f"""#!{sys.executable}
'''Runs the program that it is given, and prints a count for each call.'''
import json, os, pathlib, subprocess, sys

sys.path.insert(0, {str(Path(__file__).parent)!r})
import ncu_sample

arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.1.1.0 (build 35528883) (public-release)")
    sys.exit()
if arguments == ["--query-metrics"]:
    print("\\n".join(name.partition(".")[0] + "   Counter   # of things" for name in ncu_sample.METRICS[:4]))
    sys.exit()
option = lambda name: arguments[arguments.index(name) + 1]
log, metrics = pathlib.Path(option("--log-file")), option("--metrics").split(",")
with open(os.environ["FAKE_NCU_LOG"], "a") as asked:
    asked.write(json.dumps([*arguments, "LC_ALL=" + os.environ["LC_ALL"]]) + "\\n")
folder = pathlib.Path(arguments[-1])
path = {{"PYTHONPATH": os.environ.get("PYTHONPATH", "") + os.pathsep + sys.path[0]}}
program = "import ncu_sample, sys; ncu_sample.run(sys.argv[1])"
done = subprocess.run([sys.executable, "-c", program, str(folder)], env=os.environ | path)
with open(os.environ["FAKE_NCU_LOG"] + ".codes", "a") as codes:
    codes.write(str(done.returncode) + "\\n")
called = [json.loads(line) for line in (folder / "called").read_text().splitlines()]
rows = []
for shape, contender in called:
    values = dict(zip(ncu_sample.METRICS, ("100,000", "20,000", "400,000", "n/a", "n/a", "n/a")))
    rows.append(ncu_sample.row(len(rows), ncu_sample.MARKER, *["0"] * len(metrics)))
    rows.append(ncu_sample.row(len(rows), contender + "_kernel", *[values.get(name, "n/a") for name in metrics]))
about = ncu_sample.quoted(*ncu_sample.ABOUT, *metrics)
units = ncu_sample.quoted(*[""] * len(ncu_sample.ABOUT), *["byte"] * len(metrics))
log.write_text("\\n".join(["==PROF== Disconnected from process 1", about, units, *rows, ""]))
sys.exit(done.returncode)
"""


def run(folder: str) -> None:
    """Be the share whose folder that is, and note there which cases are called: so many kernels the tool sees."""
    from roofline.measure import child, request, share

    def at(self, step, shape="", at=share.Share.at, **about):
        if step == request.Step.CALL and self.request.kind == request.Kind.COUNTERS:
            os.environ["COUNTED"] = "1"
            with (Path(folder) / "called").open("a") as called:
                called.write(json.dumps([shape, about["name"]]) + "\n")
        at(self, step, shape, **about)

    share.Share.at = at
    child.main(Path(folder))
