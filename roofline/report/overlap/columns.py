"""The columns of cases over a wire: what each field of a record means, and what tables show of it."""

from dataclasses import replace

from roofline.analysis.overlap.metrics import CLOCK_NORMALISED, GAIN, HIDDEN, LOST, ideal_s
from roofline.report.format import bytes_text, interval_text, number_text, percent_text, time_text
from roofline.report.layout import Column
from roofline.report.throughput import columns as throughput
from roofline.store.run import REQUESTED
from roofline.theory.wires import HOW


def link_text(record: dict) -> str:
    """Return its kind and the bandwidth that it reached: `paced 0.4 GB/s`. What gathers for `serial`, where that is
    faster."""
    reached, gather = record["link_bytes_per_s"], record.get("gather")
    serial = f"; serial by {HOW[gather]}" if gather not in (None, record["link"]) and gather in HOW else ""
    speed = f" {reached / 1e9:.3g} GB/s" if reached else ""
    return HOW.get(record["link"], record["link"]) + speed + serial


def hidden_text(record: dict, names: tuple[str, str, str] = HIDDEN) -> str:
    """Return the hidden fraction with its interval."""
    return interval_text(*(record[name] for name in names), 2)


def notes_text(record: dict) -> str:
    """Return what a reader must know before trusting the row."""
    off = record["link_off_pace"]
    return throughput.notes_text(record, "its ideal", f"void: link off its pace by {100 * off:+.0f} %" if off else "")


THRESHOLD = Column("times_threshold", "`wire_intensity` over `balance`, which is T_gemm / T_comm: above 1 the matmul "
                   "sets the pace, below it the link", "1", "T_gemm / T_comm", number_text)  # fmt: skip
OWN = (
    Column("t_gemm_s", "T_gemm: that of the fastest unsplit matmul of the same rounds", "s", "T_gemm", time_text),
    Column("t_comm_s", "T_comm: that of the link alone", "s", "T_comm", time_text),
    Column("hidden_fraction", "(T_gemm + T_comm - T) / min(T_gemm, T_comm), of times paired in rounds: 1 is perfect",
           "1", "hidden [95 %]", of_row=hidden_text),
    Column("hidden_clock_normalised", "the hidden fraction, with T_gemm taken in each round as it would be at the "
           "arm's clock: arms that wait run cooler and clock higher. What an arm waits for is paced by a timer and "
           "stays", "1", "hidden at equal clock", of_row=lambda r: hidden_text(r, CLOCK_NORMALISED),
           shown=lambda r: r["hidden_clock_normalised"] is not None),
    replace(throughput.RATIO, doc="", header="gain [95 %]"),
    Column("gain_all_cores", "the time of `serial_all_cores`, which overlaps nothing and has the link's core for its "
           "matmul, over this one's; null on a GPU", "1", "over all cores [95 %]",
           of_row=lambda r: interval_text(*(r[name] for name in GAIN)), shown=lambda r: r["gain_all_cores"]),
    Column("of_ideal", "max(T_gemm, T_comm) / T", "1", "of ideal", percent_text),
    Column("of_own_ideal", "own ideal / T", "1", "of own ideal", percent_text),
    throughput.TFLOPS,
    Column("wire_intensity", "FLOP per byte that one rank receives", "FLOP/byte", "FLOP/wire byte", "{:.4g}".format),
    THRESHOLD,
    Column("spilled_bytes", "of accumulators, written to device memory and read back", "bytes", "spilled",
           lambda count: bytes_text(count) if count else "-", shown=lambda r: r["spilled_bytes"]),
    Column(  # ours all sum in fp32 and round once, so that theirs says nothing by itself
        "relative_error", header="error", text=lambda error: number_text(error, 2), shown=lambda r: r["own_fabric"]
    ),
    Column("link", "what carries the chunks. A `paced` one is an emulation, whatever its bandwidth; an arm over a "
           "fabric of its own names that", header="link", of_row=link_text),
    replace(throughput.BOUND, doc="`compute` or `wire`: the longer of T_gemm and T_comm, which bounds the model. What "
            "an arm loses, and to what, is in `diagnosis`", header="model's bound"),
    Column("rank_spread", "of real ranks: by how much of the slowest one's time the fastest was done earlier, median "
           "over rounds, which all begin behind a barrier", "1", "spread over ranks", percent_text,
           shown=lambda r: r["rank_spread"] is not None),
    Column("gemm_rank_spread", "the same of T_gemm: skew that is not the wire's", "1", "T_gemm's spread", percent_text,
           shown=lambda r: r["gemm_rank_spread"] is not None),
    Column(header="notes", of_row=notes_text, right=False, shown=notes_text),
    Column("arm", "as the contender. `_persistent` at the end: by our persistent matmul"),
    Column("ranks", "P ranks that share the wire", "1"),
    Column("row_blocks", "into how many `row_block` and `row_block_launches` cut the rows", "1"),
    Column("copier_programs", "of the paced link on a GPU (`--ffn-copier-programs`); null elsewhere", "1"),
    Column("wire", "the word of the case id"),
    Column("gather", "what gathers for `serial`: the link, or between GPUs NCCL's all-gather where that is faster"),
    Column(REQUESTED, "bandwidth that the link was asked for; of the wire `ridge`, which keeps step with T_gemm from "
           "round to round, that of a typical one", "bytes/s"),
    Column("link_bytes_per_s", "what it reached alone", "bytes/s"),
    Column("own_fabric", "true of an arm that ran over a fabric of its own: it has a time, and no field that compares "
           "it with the shape's link"),
    Column("link_off_pace", "null, or by how much of the request the link missed it: more than 5 % voids the case, "
           "which gets no hidden fraction and no share of an ideal", "1"),
    Column("wire_bytes", "bytes that one rank receives", "bytes"),
    Column("balance", "FLOP per byte at which this case's unsplit matmul and this link take equally long", "FLOP/byte"),
    Column("t_serial_s", "that of the arm `serial`", "s"),
    Column("t_own_ideal_s", "own ideal: what the simulator (`roofline/theory/simulator.py`) says the arm "
           "could reach, from sizes and the two times alone", "s"),
    Column("hidden_low", "95 % interval of `hidden_fraction`", "1"),
    Column("hidden_high", "its other end", "1"),
    Column("sm_clock_hz", "the SM clock after this arm's samples; null on a CPU", "Hz"),
    Column("gemm_sm_clock_hz", "the same after those of T_gemm", "Hz"),
    Column("hidden_clock_normalised_low", "its 95 % interval", "1"),
    Column("hidden_clock_normalised_high", "its other end", "1"),
    Column("t_preset_s", "the kernel of the flagged arms with all flags up: its time", "s"),
    Column("preset_slowdown", "that over the fastest unsplit matmul: above 1 is what waiting code costs", "1"),
    Column("gemm_slowdown", "the matmul that the arm runs, while the link brings something else, over the same one "
           "alone: the kernel with all flags up of `chunk_outer` and `row_block`, `persistent` of arms named for it, "
           "else the fastest unsplit one", "1"),
    Column("link_slowdown", "the last arrival in this arm over the link alone; null of a scatter", "1"),
    Column("roof_tflops", "`flop` over the longer of T_gemm and T_comm", "1e12 FLOP/s"),
    Column("of_roof", "as `of_ideal`", "1"),
    Column("above_roof", "true where the whole interval of the hidden fraction lies above 1"),
    Column("gain_all_cores_low", "95 % interval of `gain_all_cores`", "1"),
    Column("gain_all_cores_high", "its other end", "1"),
    Column("lost_schedule_s", "own ideal less max(T_gemm, T_comm). The four parts add up to the arm's time less that",
           "s"),
    Column("lost_code_s", "what the own ideal grows by when the arm's own matmul, all data here, takes the place of "
           "T_gemm: the kernel with all flags up of an arm that waits on the device, `persistent` of one named for it; "
           "null of others, whose own is T_gemm", "s"),
    Column("lost_contention_s", "what it grows by further when the matmul takes `gemm_slowdown` of its time, and the "
           "gather `link_slowdown` of T_comm; null where neither was measured", "s"),
    Column("lost_rest_s", "the arm's time less all of that: launches, sums in memory, whatever was not measured", "s"),
    Column("diagnosis", "the largest part, in words; `undecided` where the interval of `of_ideal` reaches 1"),
)  # fmt: skip


def _part(name: str) -> Column:
    """Return the time that an arm loses to one thing, as a share of its time."""
    there = lambda r: r[name] is not None  # noqa: E731
    return Column(name, header=LOST[name], of_row=lambda r: _share(r[name], r) if there(r) else "-", shown=there)


def _share(lost_s: float, record: dict) -> str:
    return f"{100 * lost_s / record['time_s']:+.1f} %"


SPLIT = (
    *throughput.CASE,
    replace(THRESHOLD, doc=""),
    throughput.TIME,
    Column(header="ideal", of_row=lambda r: time_text(ideal_s(r))),
    Column(header="above it", of_row=lambda r: _share(r["time_s"] - ideal_s(r), r)),
    *map(_part, LOST),
    Column("diagnosis", header="diagnosis", right=False),
)
"""Where an arm's time goes."""

_SHOWN = (*throughput.CASE, throughput.TIME, *OWN)
COLUMNS = (*_SHOWN, *throughput.others(_SHOWN))
