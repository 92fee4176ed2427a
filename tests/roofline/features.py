"""Which feature fills each field of fields.toml, in a committed run or in one that the tests of a file make; and what
fields are of others."""

from roofline.analysis.fields import FIELDS, GROUPS
from roofline.analysis.records import frame
from roofline.analysis.tokens import by_tokens
from roofline.operations.shown import Field
from roofline.store.run import Run

CPU, GPU, LINK = "amd-epyc-2026-11-24", "nvidia-h200-2026-11-26", "nvidia-h200-2026-11-26-2"
FEATURES = {
    "cases": (CPU, "case shape analysis contender op baseline rival config notes source method_version"),
    "matmul": (CPU, "model layer tp m n k dtype flop device_bytes device_intensity relative_error"),
    "turns": (CPU, "time_s tflops ratio_to_baseline baseline_time_s rounds passes processes lag1_correlation"),
    "stop rule": (CPU, "late cache stopped_by"),
    "roof": (GPU, "of_roof bound roof_tflops roof_probe above_roof"),
    "clock and power": (GPU, "throttled throttle_reasons sm_clock_mhz power_w temperature_c other_processes"),
    "kernel names": (GPU, "kernel_name"),
    "binaries": ("test_findings.py", "binary"),
    "steady state": (
        GPU,
        "steady_time_s steady_ratio_to_baseline steady_sm_clock_mhz steady_energy_j steady_power_w steady_throttled",
    ),
    "a CPU's neighbours": (CPU, "stolen_share others_share waiting_share load_average"),
    "emulated wire": (
        LINK,
        "ranks wire link link_bytes_per_s link_bytes_per_s_requested copier_programs wire_intensity wire_bytes",
    ),
    "overlap": (LINK, "t_gemm_s t_comm_s ideal_s hidden_fraction balance ratio row_blocks spilled_bytes own_fabric"),
    "all cores": (CPU, "gain_all_cores"),
    "equal clock": (LINK, "hidden_clock_normalised sm_clock_hz gemm_sm_clock_hz"),
    "own ideal": (LINK, "t_own_ideal_s of_own_ideal preset_slowdown gemm_slowdown link_slowdown"),
    "losses": (LINK, "lost_schedule_s lost_code_s lost_contention_s lost_rest_s diagnosis"),
    "split launches": ("test_rehearsal.py", "ranks_per_launch split_slowdown lost_split_s"),
    "call costs": ("test_rehearsal.py", "graph_s host_s"),
    "matmul's choice": ("test_rehearsal.py", "dispatched tuned"),
    "counters": (
        "test_rehearsal.py",
        "dram_bytes dram_of_device_bytes counted_intensity l2_bytes tensor_pipe_share counter_source",
    ),
    "decisions": ("test_decision.py", "verdict decided looks"),
    "void link": ("test_gather_run.py", "link_off_pace"),
    "real ranks": ("test_ranks.py", "rank_spread gemm_rank_spread"),
}
"""Feature -> (run or file, fields of a record). The ends of an interval go with their field."""

OF_TABLE = {
    "by tokens": (
        GPU,
        "m dtype shapes baseline baseline_tflops fastest tflops ratio_to_baseline dispatched_shapes sustained "
        "sustained_shapes least least_shape of_roof",
    ),
    "matmul's choice by tokens": ("test_rehearsal.py", "tuned dispatched dispatched_ratio dispatched_tuned"),
}
"""The same of the columns of `by_tokens`."""


FORMULAS = {
    "tflops": "flop / time_s / 1e12",
    "ratio_to_baseline": "baseline_time_s / time_s",
    "of_roof": "tflops / roof_tflops",
    "device_intensity": "flop / (device_bytes + spilled_bytes)",
    "wire_intensity": "flop / wire_bytes",
    "ratio": "wire_intensity / balance",
    "of_own_ideal": "t_own_ideal_s / time_s",
    "hidden_fraction": "(t_gemm_s + t_comm_s - time_s) / shorter_s",
    "steady_power_w": "steady_energy_j / steady_time_s",
    "time_s": "ideal_s + lost_schedule_s + lost_split_s + lost_code_s + lost_contention_s + lost_rest_s",
}
"""What a field is, of others."""
PAIRED = "hidden_clock_normalised gain_all_cores steady_ratio_to_baseline preset_slowdown gemm_slowdown link_slowdown"
COUNTED = "lag1_correlation relative_error stolen_share others_share waiting_share load_average"
"""Shares and ratios that no other fields make: of times that are paired in rounds, and of a process or a system."""


def with_ends(declared: dict[str, Field], names: str) -> list[str]:
    return [name for field in names.split() for name in (field, *declared[field].ends)]


def unfilled(run: Run, *features: str) -> list[str]:
    """The fields of some features of which no case of `run` has a value."""
    table = frame(run)
    missing = []
    for feature in features:
        if feature in FEATURES:
            columns = table[with_ends(FIELDS, FEATURES[feature][1])]
        else:
            columns = by_tokens(run, table)[with_ends(GROUPS["tokens"], OF_TABLE[feature][1])]
        missing.extend(columns.columns[columns.isna().all()])
    return missing
