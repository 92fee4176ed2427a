"""What Nsight Compute's raw CSV says of a call: bytes of device memory and of the L2 cache, tensor operations.

`ncu --csv --page raw` prints a row of names, a row of units and a row for each kernel, between lines of its own that
begin with ==. A call may be several kernels (split-K and its reduction): their counts add up. A metric that this tool
or chip lacks is `n/a`, and what is made of it is None: a sum without one of its parts would be too small, in silence.

Metrics: NVIDIA's Nsight Compute documentation, "Metrics Reference". Of wgmma, `sm__ops_path_tensor_src_*` counts the
operations, while those with `op_hmma` in their name read 0. Level 1 is left out: its counters miss what TMA loads.
"""

import csv
import re
from dataclasses import dataclass

DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
L2 = ("lts__t_bytes.sum",)
TENSOR = {dtype: f"sm__ops_path_tensor_src_{dtype}_dst_fp32" for dtype in ("bf16", "fp16")}
"""Operations of the tensor cores, a multiply-add counted as two, by dtype of the operands. fp32 is multiplied without
them."""

UNITS = ("", "B", "byte", "bytes", "op", "ops", "inst")
NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?")
ABSENT = ("", "n/a", "nan", "(!) n/a", "(!) nan")


@dataclass(frozen=True)
class Launch:
    """One kernel that was counted. `values` is {metric: count}, None where there was none."""

    kernel: str
    values: dict[str, float | None]


def alternatives(dtype: str) -> dict[str, list[tuple[str, ...]]]:
    """Return, by field of a record, metrics that add up to it; the first that exist are taken.

    Tools of 2025 and later may know only the two parts of what is one metric to those before them.
    """
    base = TENSOR.get(dtype)
    off, on = f"{base}_sparsity_off.sum", f"{base}_sparsity_on.sum"
    tensor = [(f"{base}.sum",), (off, on)] if base else []
    return {"dram_bytes": [DRAM], "l2_bytes": [L2], "tensor_ops": tensor}


def metrics(dtypes) -> list[str]:
    """Return all metrics that are of use for operands of `dtypes`."""
    groups = [group for dtype in dtypes for choices in alternatives(dtype).values() for group in choices]
    return list(dict.fromkeys(name for group in groups for name in group))


def available(wanted: list[str], listing: str) -> list[str]:
    """Return those of `wanted` that `listing`, of `ncu --query-metrics`, has; all of them where it cannot be relied on.

    Some versions refuse to count anything if they are asked for one metric that they do not know.
    """
    words = set(re.findall(r"\w+", listing))
    listed = [name for name in wanted if name.partition(".")[0] in words]
    tensor = [name for name in wanted if name not in DRAM + L2]
    reliable = set(DRAM + L2) <= set(listed) and (not tensor or set(tensor) & set(listed))
    return listed if reliable else wanted


def parse(text: str) -> list[Launch]:
    """Return the kernels of a raw page, in the order of their launches; [] where `text` holds no table.

    Raises ValueError for a row that was cut off, and for a unit or a number that cannot be read. Of columns that nobody
    asked for, nothing is read: some versions add the device's attributes, the name of the chip among them.
    """
    launches, header, units = [], None, {}
    # Line by line: what the tool and the program say stands between the rows, and may hold a quotation mark.
    for line in text.splitlines():
        if not line.startswith('"'):
            continue
        row = next(csv.reader([line]))
        if row[0] == "ID":
            header, units = row, {}
        elif header and len(row) != len(header):
            raise ValueError(f"a row of the counters has {len(row)} cells, {len(header)} are needed: it was cut off")
        elif header and not row[0]:
            units = dict(zip(header, row, strict=True))
        elif header:
            cells = dict(zip(header, row, strict=True))
            values = {n: _value(n, cells[n], units.get(n, "")) for n in metrics(TENSOR) if n in cells}
            launches.append(Launch(cells["Kernel Name"], values))
    return launches


def by_call(launches: list[Launch]) -> list[list[Launch]]:
    """Return the kernels of each call. Before each call a marker was launched: a kernel like the first of all."""
    calls: list[list[Launch]] = []
    for launch in launches:
        if launch.kernel == launches[0].kernel:
            calls.append([])
        else:
            calls[-1].append(launch)
    return calls


def counts(call: list[Launch], dtype: str) -> dict:
    """Return {dram_bytes, l2_bytes, tensor_ops: a whole number or None; metrics: {field: those that it is the sum of}}
    of a call, over its kernels. Raises ValueError where there is nothing of it."""
    if not call:
        raise ValueError("no kernel of it was seen")
    fields, source = {}, {}
    for field, groups in alternatives(dtype).items():
        fields[field] = None
        for group in groups:
            values = [launch.values.get(name) for launch in call for name in group]
            if None not in values:
                fields[field], source[field] = round(sum(values)), list(group)
                break
    if not source:
        raise ValueError("every counter of it is n/a")
    return fields | {"metrics": source}


def _value(name: str, text: str, unit: str) -> float | None:
    if text.strip() in ABSENT:
        return None
    if not NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{name} is {text!r}, which is no number as 1,234.5 is one: run ncu with LC_ALL=C")
    if unit.strip() not in UNITS:
        raise ValueError(f"{name} is in {unit!r}, a unit that is not known here: run ncu with --print-units base")
    return float(text.replace(",", ""))
