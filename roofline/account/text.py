"""The answer of `roofline account` for people: what was asked, then every term, to check each figure by hand."""

import textwrap

from roofline.account.command import GIVEN
from roofline.account.communication_bound import WIRES
from roofline.account.memory import READINGS, SAVED
from roofline.report.tables import aligned
from roofline.theory.chips import GB, GIB

WIDTH = 120


def text(answer: dict) -> list[str]:
    """Its lines: what was asked, and a table for each part."""
    return [*_asked(answer), "", *_head(answer), "", *_memory(answer), "", *_pace(answer), "", *_techniques(answer)]


def _asked(answer: dict) -> list[str]:
    """Whether it fits, from how many tokens on it is compute-bound, and what lowers that most."""
    sharding, stage = answer["sharding"], answer["sharding"]["stage_blocks"]
    uneven = f" (stages of {stage} blocks and of fewer: counted as of {stage})"
    about = f" ({sharding['chosen']})" if sharding["chosen"] else ""
    about += uneven if answer["model"]["blocks"] % stage else ""
    lines = [f"{_many(sharding['devices'], 'device')}: {_degrees(sharding)}{about}"]
    replicas = f" (the state whole in each of {sharding['dp']:,} replicas)" if sharding["dp"] > 1 else ""
    for reading in answer["memory"]["readings"]:
        verdict = {True: "it fits", False: "it does not fit", None: "it takes"}[reading["fits"]]
        held = f"{READINGS[reading['reading']]}: {_both(reading['device_bytes'])} on each device{replicas}"
        lines.append(f"  {verdict}, {held}")
        if least := reading["least_devices"]:
            enough = (f"{size} " + (f"from N = {count:,} on" if count else "at no N") for size, count in least.items())
            lines.append(f"    enough: {', '.join(enough)}")
    lines.append(f"  {_bound_text(answer['pace'])}")
    if hidden := answer["pace"]["hidden"]:
        lines += _wrapped(_hidden_text(hidden, answer["pace"]["bound"]["tokens"]), "  ")
    if best := next((one for one in answer["techniques"] if one["helps"]), None):
        tokens, each = best["tokens"], _plain(best["tokens_per_device"], 1)
        above = f"above {each} tokens on each device" if tokens else "at any number of tokens"
        lines += _wrapped(f"best lever: {best['name']}: compute-bound {above}; {best['why']}", "  ")
    return lines


def _head(answer: dict) -> list[str]:
    model, chip = answer["model"], answer["chip"]
    experts = f", {model['experts']} experts, {model['top_k']} a token" if model["experts"] > 1 else ""
    given = {name: " (given)" if name in chip["given"] else "" for name in GIVEN}
    if chip["mesh"] == "torus":
        ways = "both ways" if chip["ways"] == 2 else "one way"
        dealt = ", ".join(f"{count} for {kind}" for kind, count in chip["axes"].items())
        mesh = f"torus axes of {chip['axis_bytes_per_s'] / 1e9:g} GB/s {ways}{given['bandwidth']}"
        mesh += f" ({dealt})" if dealt else ""
    else:
        mesh = f"nodes of {chip['node_size']}{given['node']}, {chip['link_bytes_per_s'] / 1e9:g} GB/s inside"
        mesh += given["bandwidth"] + (", switches reduce" if chip["sharp"] else "")
    network = f"{chip['network_bytes_per_s'] / 1e9:g} GB/s" if chip["network_bytes_per_s"] else "unknown"
    memory = _both(chip["memory_bytes"]) if chip["memory_bytes"] else "memory unknown"
    return [
        f"{model['name']}: {_many(model['blocks'], 'block')}, D = {model['d_model']} -> F = {model['d_ff']} "
        f"-> D{experts}; {answer['memory']['parameters']:,} parameters",
        f"{chip['name']}: {chip['flops']:.4g} FLOP/s{given['flops']}, {mesh}, network {network}{given['network']}, "
        f"{memory}{given['memory']}",
        *_wrapped(chip["source"], "  "),
    ]


def _degrees(sharding: dict) -> str:
    names = {"fsdp": "fsdp X", "tp": "tp Y", "dp": "dp", "ep": "ep", "pp": "pp"}
    used = [f"{name} = {_short(sharding[kind])}" for kind, name in names.items() if sharding[kind] != 1]
    return ", ".join(used) or "not sharded"


def _x_and_y(sharding: dict) -> str:
    return f"X = {_short(sharding['fsdp'])}, Y = {_short(sharding['tp'])}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"


def _many(count: float, thing: str) -> str:
    return f"{_plain(count)} {thing}{'' if count == 1 else 's'}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _plain(value: float, digits: int = 0) -> str:
    """With commas; of a small one the first three digits, so that none becomes 0, and of one too large for its column
    the first four."""
    if value and value * 10**digits < 10:
        return f"{value:.3g}"
    plain = f"{value:,.{digits}f}"
    return plain if len(plain) <= 15 - 2 * digits else f"{value:.4g}"


def _both(size: float) -> str:
    return f"{_plain(size / GB, 2)} GB = {_plain(size / GIB, 2)} GiB"


def _memory(answer: dict) -> list[str]:
    memory, dtypes = answer["memory"], answer["memory"]["dtypes"]
    weights = dtypes["weights"] + (f" and {dtypes['copy']}" if dtypes["copy"] != "none" else "")
    at_once = " at once" if answer["pace"]["gathers"] > 1 else ""
    of_token = f"{memory['saved_bytes_per_token']:,} bytes a token: {SAVED[memory['saved']]}"
    rows = (
        (f"weights, {weights}", "weights", ""),
        (f"gradients, {dtypes['gradients']}", "gradients", ""),
        (f"optimizer, {dtypes['optimizer']}", "optimizer", ""),
        ("state", "state", "the three together"),
        (f"saved for {_many(memory['tokens'], 'token')}{at_once}, {dtypes['activations']}", "saved", of_token),
    )
    sizes = {name: memory[f"{name}_bytes"] for _, name, _ in rows}
    cells = [
        (f"  {what}", _plain(sizes[name] / GB, 2), _plain(sizes[name] / GIB, 2), note) for what, name, note in rows
    ]
    lines = aligned([("MEMORY in training", "GB", "GiB", ""), *cells], "<>><")
    for reading in memory["readings"]:
        whole = reading["whole_bytes"]
        kept = f" + {_plain(whole / GB, 2)} GB" if whole else ""
        sharded = f"({_plain(sizes['state'] / GB, 2)} + {_plain(sizes['saved'] / GB, 2)}) GB / N"
        lines.append(f"  {READINGS[reading['reading']]}: {sharded}{kept}")
    if memory["gathered_bytes"]:
        kept = answer["sharding"]["pp"] > 1 and answer["pace"]["gathers"] == 1
        what = "counted, kept for all microbatches: a stage's" if kept else "not counted, alive for a moment: a block's"
        lines.append(f"  {what} gathered weights, {_both(memory['gathered_bytes'])}")
    return lines


def _pace(answer: dict) -> list[str]:
    pace, d_ff = answer["pace"], answer["model"]["d_ff"]
    of_block = "forward pass of one block" if pace["step"] == "forward" else "one block, forward and backward pass"
    rows = [("  ", "term", "over", "V, fixed", "V, a token", "received", "rate", "time", "a token")]
    for math in pace["math"]:
        flop, rate = f"{_plain(math['flop_per_token'])} FLOP", f"{answer['chip']['flops'] / 1e12:.4g} TFLOP/s"
        rows.append((f"  {math['step']}", "matmuls", "chips", "", flop, "", rate, "-", _time(math["s_per_token"])))
    for term in pace["terms"]:
        crossing = next(crossing for crossing in term["crossings"] if crossing["fabric"] == term["fabric"])
        sent = _plain(term["fixed_bytes"]), _plain(term["bytes_per_token"])
        received = f"{crossing['amount']:.4g} V", f"{crossing['bytes_per_s'] / 1e9:.4g} GB/s"
        times = _time(term["fixed_s"]), _time(term["s_per_token"])
        rows.append((f"  {term['step']}", term["name"], term["fabric"], *sent, *received, *times))
    lines = [f"CHIPS OR WIRES, {of_block}", *aligned(rows, "<<<>>>>>>"), "  compute-bound above"]
    marks = {pace["wires"]: "<- taken here"}
    bounds = [(f"    {WIRES[wires]}:", _tokens(bound), marks.get(wires, "")) for wires, bound in pace["bounds"].items()]
    lines += aligned(bounds, "<<<")
    if pace["least_d_ff"]:
        verdict = "so they keep up" if pace["least_d_ff"] <= d_ff else "so they do not keep up"
        lines.append(f"  activations need F above {pace['least_d_ff']:,.0f}, and F = {d_ff:,}: {verdict}")
    best = {name: pace["best_split"][name] for name in ("whole", "real") if pace["best_split"][name]}
    lines += [f"  {f'best {name} split':<17} {_x_and_y(split)}: {_tokens(split)}" for name, split in best.items()]
    return lines + _at(answer)


def _bound_text(pace: dict) -> str:
    bound, at = pace["bound"], pace["at_tokens"]
    if bound["tokens"] is None:
        return f"never compute-bound: over the {bound['fabric']} each token takes longer than on the chips"
    if not bound["tokens"]:
        return "compute-bound at any number of tokens"
    few = at and any(step["pace"] == "wire" for step in at["steps"])
    enough = f" ({at['tokens']:,} are {'too few' if few else 'enough'})" if at else ""
    below = f"the {bound['step']} pass waits for the {bound['fabric']}"
    return f"compute-bound above {_tokens(bound)}{enough}; below, {below}"


def _hidden_text(hidden: dict, bound: float | None) -> str:
    shares = [100 * hidden["computes_at_bound"]] * bool(bound) + [100 * hidden["computing"]]
    there, enough = " of the time there, and for ".join(f"{share:.0f} %" for share in shares), _tokens(hidden)
    return (
        f"with {hidden['share']:.2f} hidden ({hidden['source']}) the chips compute for {there} from here on: {enough}"
    )


def _tokens(bound: dict) -> str:
    if bound["tokens"] is None:
        return "none, the wire takes longer for each token"
    if bound["tokens"] == 0:
        return "any number of tokens"
    return f"{_plain(bound['tokens'])} tokens, {_plain(bound['tokens_per_device'], 1)} on each device"


def _time(seconds: float) -> str:
    scales = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("ps", 1e-12), ("fs", 1e-15))
    unit, scale = next((pair for pair in scales if seconds >= pair[1]), scales[-1])
    return f"{seconds / scale:.4g} {unit}" if seconds else "-"


def _at(answer: dict) -> list[str]:
    at = answer["pace"]["at_tokens"]
    if not at:
        return []
    lines = [f"  at {_many(at['tokens'], 'token')}, {_plain(at['tokens_per_device'], 1)} on each device:"]
    if at["devices_without_tokens"]:
        parts = answer["sharding"]["fsdp"] * answer["sharding"]["ep"] * answer["sharding"]["dp"]
        step = " of a microbatch" if answer["pace"]["gathers"] > 1 else ""
        lines.append(
            f"    too few: {_many(at['devices_without_tokens'], 'device')} have none, since the tokens{step} are dealt "
            f"out to {_plain(parts)}; the times are of an even share"
        )
    share = answer["pace"]["hidden"]
    for step in at["steps"]:
        pace = "the wire sets" if step["pace"] == "wire" else "the chips set"
        times = {name: _time(step[f"{name}_s"]) for name in ("math", "wire", "serial", "overlapped")}
        hidden = f", with {share['share']:.2f} hidden {_time(step['hidden_s'])}" if share else ""
        lines.append(
            f"    {step['step']:<9} matmuls {times['math']}, wires {times['wire']}: {pace} the pace; "
            f"serial {times['serial']}, overlapped {times['overlapped']}{hidden}"
        )
    best = answer["pace"]["best_split"]
    whole, real = best["least_wire_whole"], best["least_wire_real"]
    busy = f"wires are busy least, {_time(whole['wire_s'])}, at {_x_and_y(whole)}"
    return [*lines, f"    {busy} (over the reals {_x_and_y(real)})"]


def _techniques(answer: dict) -> list[str]:
    found, bound = answer["techniques"], answer["pace"]["bound"]
    if bound["tokens"] == 0:
        return ["WHAT LOWERS THE BOUND: there is none, the chips set the pace at any number of tokens"]
    bytes_now = next(one["wire_bytes"] for one in found if one["name"] == "overlap gathers with matmuls")
    rows = [("  technique", "a device", "of now", "memory", "FLOP", "bytes")]
    header, *lines = aligned(rows + [_cells(technique, bytes_now) for technique in found], "<>>>>>")
    said = {True: [], False: ["  and what does not:"]}
    for technique, line in zip(found, lines, strict=True):
        said[technique["helps"]] += [line, *_wrapped(technique["why"], "      ")]
    return [f"WHAT LOWERS THE BOUND, now {_tokens(bound)}", header, *said[True], *said[False]]


def _cells(technique: dict, bytes_now: float) -> tuple[str, ...]:
    name = f"  {technique['name']}"
    if not technique["possible"]:
        return name, "-", "", "", "", ""
    tokens, of_now = technique["tokens_per_device"], technique["of_the_bound_now"]
    memory, flop = technique["memory_bytes"], technique["flop"]
    return (
        name,
        "none" if tokens is None else _plain(tokens, 1) if tokens else "any",
        f"{of_now:.2f}" if of_now is not None else "",
        f"{'-' if memory < 0 else '+'}{_plain(abs(memory) / GB, 2)} GB" if memory else "",
        f"{flop:.2f}" if flop != 1 else "",
        f"{technique['wire_bytes'] / bytes_now:.2f}" if bytes_now else "",
    )
