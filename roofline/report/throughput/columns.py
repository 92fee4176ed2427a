"""The columns of every case: what each field of a record means, and what tables show of it."""

from collections.abc import Iterable
from dataclasses import replace

from roofline.analysis.throughput.metrics import ENDS, FEW_ROUNDS, shape_of
from roofline.report import kernel_words
from roofline.report.format import (
    bytes_text,
    interval_text,
    number_text,
    percent_text,
    range_text,
    rate_text,
    share_text,
    time_text,
)
from roofline.report.layout import Column
from roofline.store.run import INTERRUPTED


def ratio_text(record: dict, kind: str = "ratio", text=interval_text) -> str:
    """Ratio to the baseline with its interval, written by `text`; or that it is the baseline. `kind` is the prefix of
    its fields."""
    if record["contender"] == record["vendor"]:
        return "1 (baseline)"
    return text(*(record[f"{kind}_{end}"] for end in ("to_vendor", "low", "high")))


def _joules_text(record: dict) -> str:
    """Of 1e12 FLOP."""
    joules = [record[f"steady_energy{end}_j"] for end in ENDS]
    return "-" if None in joules else range_text(*(1e12 * end / record["flop"] for end in joules), number_text)


def notes_text(record: dict, roof: str = "the measured roof", more: str = "") -> str:
    """Return what a reader must know before trusting the row; `more` stands in the middle."""
    rounds, late = record["rounds"], record["late"]
    notes = {
        f"throttled: {record.get('throttle_reasons')}": record.get("throttled"),
        f"above {roof}": record["above_roof"],
        more: more,
        "cut short": record["stopped_by"] == INTERRUPTED,
        f"{rounds} rounds only": rounds < FEW_ROUNDS,
        f"host late in {late}": late > 0.1 * rounds,
    }
    return "; ".join(note for note, holds in notes.items() if holds)


CASE = (
    Column("case", "shape and contender: the id of the benchmark", header="shape", of_row=shape_of, right=False),
    Column("contender", "the implementation, or the arm", header="contender", right=False),
)
"""What says, in every table, of which case a row is."""

TIME = Column("time_s", "typical time: the mean of the middle half of logarithms, over processes", "s", "time",
              time_text)  # fmt: skip
TFLOPS = Column("tflops", "`flop` over `time_s`", "1e12 FLOP/s", "TFLOP/s", rate_text)
OF_ROOF = Column("of_roof", "share of the roof that was reached: of what a probe reached in the same rounds", "1",
                 "of roof [95 %]", of_row=lambda r: share_text(*(r[f"of_roof{end}"] for end in ENDS)))  # fmt: skip
RATIO = Column("ratio_to_vendor", "the baseline's time over this one's: above 1 is faster",
               "1", "ratio to baseline [95 %]", of_row=ratio_text)  # fmt: skip
INTENSITY = Column("device_intensity", "FLOP per byte of device memory; what is spilled counts too", "FLOP/byte",
                   "FLOP/byte", "{:.3g}".format)  # fmt: skip
COUNTED_INTENSITY = Column("counted_intensity", "`flop` over `dram_bytes`", "FLOP/byte", "FLOP/byte", number_text)
BOUND = Column("bound", "which bound of the roof it is under: `compute`, `memory`. It is the model's, of the intensity "
               "alone, and no diagnosis of what holds it up", header="model's bound", right=False)  # fmt: skip
KERNEL = Column("kernel_name", "what one call launches, by torch's profiler after all timing, several joined by ` + `; "
                "null on a CPU. Tables have names of cuBLAS in words: of its tile the first size lies along n, since "
                "it counts by columns", header="kernel", text=kernel_words.words, right=False,
                shown=lambda r: r["kernel_name"])  # fmt: skip
NOTES = Column(header="notes", of_row=notes_text, right=False, shown=notes_text)
"""`notes_text`, left out where no row has any."""
CONFIG = Column("config", "the tile choice, or the library and version")

COUNTED = (
    Column("dram_bytes", "with `--ffn-counters`: what one call read from and wrote to device memory", "bytes",
           "device memory", bytes_text),
    Column("dram_of_device_bytes", "`dram_bytes` over `device_bytes`: below 1 where an output was still in the L2 "
           "cache when its kernel ended", "1", "of least", number_text),
    COUNTED_INTENSITY,
    replace(INTENSITY, doc="", header="modelled"),
    Column("l2_bytes", "what it moved through the L2 cache", "bytes", "L2 cache", bytes_text),
    Column("tensor_ops", "what it did on the tensor cores", "FLOP"),
    Column("tensor_ops_of_flop", "`tensor_ops` over `flop`: 1, more where tiles are padded, 0 where other units "
           "multiply. Anything else is an error of the counter", "1", "tensor operations/FLOP", number_text),
    Column("counter_source", "the tool that counted, its version and its metrics; null where not counted"),
)  # fmt: skip
"""What a profiler counted in one call."""

STEADY = (
    Column("steady_time_s", "median over blocks of 5 s in which a kernel runs alone: with `--ffn-steady`, and by "
           "default on a GPU from 1024 tokens and 2 ms on, the baseline and the fastest other", "s", "time", time_text),
    Column("steady_tflops", "`flop` over it", "1e12 FLOP/s", "TFLOP/s", rate_text),
    Column("steady_tflops_low", "of the slowest block", "1e12 FLOP/s"),
    Column("steady_tflops_high", "of the fastest block", "1e12 FLOP/s"),
    Column("steady_blocks", "how many there were", "1"),
    Column("steady_of_single", "its speed over that of single calls in turns", "1", "of single calls", percent_text),
    Column("steady_ratio_to_vendor", "the baseline's time over this one's, in blocks of one alternation", "1",
           "ratio to baseline [range]", of_row=lambda r: ratio_text(r, "steady_ratio", range_text)),
    Column("steady_ratio_low", "the least of the blocks", "1"),
    Column("steady_ratio_high", "the greatest of the blocks", "1"),
    Column("steady_sm_clock_mhz", "SM clock in the blocks", "MHz", "SM clock, MHz", "{:.4g}".format),
    Column("steady_energy_j", "of a call; of the counted part of a block alone", "J"),
    Column("steady_energy_low_j", "the least of the blocks", "J"),
    Column("steady_energy_high_j", "the greatest of the blocks", "J"),
    Column("steady_power_w", "energy over time", "W", "power, W [range]",
           of_row=lambda r: range_text(*(r[f"steady_power{end}_w"] for end in ENDS), rate_text)),
    Column("steady_power_low_w", "the least of any second of the blocks", "W"),
    Column("steady_power_high_w", "the greatest", "W"),
    Column("steady_flop_per_joule", "`flop` over `steady_energy_j`", "FLOP/J", "J/TFLOP [range]", of_row=_joules_text),
    Column("steady_idle_power_w", "what the device drew before the run, when nothing ran on it", "W"),
    Column("steady_throttled", "why the clock was held down, in words", header="notes", right=False,
           shown=lambda r: r["steady_throttled"]),
)  # fmt: skip
"""Of blocks in which a kernel runs alone."""

COLUMNS = (
    *CASE,
    TIME,
    TFLOPS,
    OF_ROOF,
    RATIO,
    INTENSITY,
    replace(COUNTED_INTENSITY, doc="", header="FLOP/byte counted", shown=lambda r: r["counter_source"] is not None),
    BOUND,
    KERNEL,
    NOTES,
    Column("op", "the operation"),
    Column("model", "sizes of the FFN"),
    Column("layer", "`up` or `down`"),
    Column("tp", "over how many chips a layer is split", "1"),
    Column("m", "rows of x and out, tokens: out[m, n] = x[m, k] @ w[n, k].T", "1"),
    Column("n", "columns of out", "1"),
    Column("k", "the summed dimension", "1"),
    Column("dtype", "of the operands and of out"),
    Column("flop", "its work; a multiply-add is 2", "FLOP"),
    Column("device_bytes", "each input read once and each output written once", "bytes"),
    Column("time_low_s", "95 % interval: Student's over processes; of a single one, over its passes", "s"),
    Column("time_high_s", "its other end", "s"),
    Column("rounds", "samples", "1"),
    Column("visits", "returns to the shape", "1"),
    Column("processes", "that measured it", "1"),
    Column("of_roof_low", "95 % interval of `of_roof`", "1"),
    Column("of_roof_high", "its other end", "1"),
    Column("lag1_correlation", "of neighbouring samples", "1"),
    Column("tflops_low", "over `time_high_s`", "1e12 FLOP/s"),
    Column("tflops_high", "over `time_low_s`", "1e12 FLOP/s"),
    Column("roof_tflops", "the measured roof at this intensity, at the pace of the case's own rounds", "1e12 FLOP/s"),
    Column("above_roof", "true where the whole interval of `of_roof` lies above 1, and that of the rate above the "
           "ceilings of the run"),
    Column("vendor", "the baseline: what the others are compared with"),
    Column("vendor_time_s", "its time on this shape", "s"),
    Column("ratio_low", "95 % interval of `ratio_to_vendor`", "1"),
    Column("ratio_high", "its other end", "1"),
    Column("relative_error", "Frobenius norm against float64 (or a tenth of the largest error, if that is more), "
           "before timing, on an output poisoned with NaN. At most 3e-3 in bf16, 5e-4 in fp16, 1e-5 in fp32; of the "
           "vendor 1e-2 and 2e-3, since cuBLAS may add up parts of K that are rounded", "1"),
    CONFIG,
    Column("late", "samples dropped because the host enqueued the work too late, or of real ranks one lacked its core",
           "1"),
    Column("cache", "its state before every sample"),
    Column("stopped_by", "what ended the rounds: `width`, `time`, `rounds`; `interrupt` where they were cut short"),
    Column("throttled", "whether the clock was held down; null on a CPU: unknown"),
    Column("throttle_reasons", "why, in words; on a GPU, as the next four"),
    Column("sm_clock_mhz", "SM clock", "MHz"),
    Column("power_w", "NVML averages it over about a second, which may reach into the case before", "W"),
    Column("temperature_c", "of the chip", "C"),
    Column("other_processes", "on the card", "1"),
    Column("stolen_share", "of a CPU: time that the hypervisor gave to others", "1"),
    Column("others_share", "of a CPU: time that other processes of the system took; null between real ranks", "1"),
    Column("waiting_share", "of a CPU: samples in which threads waited for a core for above 5 % of the time; null "
           "before method 5", "1"),
    Column("load_average", "of a CPU: processes that ran or waited to, over the last minute", "1"),
    Column("telemetry_error", "why nothing was read"),
    *(replace(column, header="") for column in (*COUNTED, *STEADY)),
    Column("source", "`gpu` or `cpu`"),
    Column("method_version", "of the measuring method", "1"),
)  # fmt: skip


def others(columns: Iterable[Column], *left_out: str) -> list[Column]:
    """Return the columns that any case has, for records alone, but for those that are `known` already or `left_out`."""
    there = {*left_out, *(column.name for column in columns if column.doc)}
    return [replace(column, header="") for column in COLUMNS if column.doc and column.name not in there]
