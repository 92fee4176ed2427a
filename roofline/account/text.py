"""The answer of `roofline account` for people: every term, so that each figure can be checked by hand."""

import textwrap

from roofline.theory.chips import GB, GIB

WIDTH = 120

SAVED = {
    "all": "the inputs of both layers",
    "half": "the inputs of both layers of every second block",
    "checkpointed": "the blocks' inputs, and one block's inner ones",
}
READING = {
    "sharded": "all sharded",
    "dropped": "the other half dropped, and computed again",
    "whole": "the other half kept, whole on every device",
}


def text(answer: dict) -> list[str]:
    """The lines of a table for each part of the answer."""
    return [*_head(answer), "", *_memory(answer), "", *_pace(answer), "", *_techniques(answer)]


def _head(answer: dict) -> list[str]:
    model, chip, memory = answer["model"], answer["chip"], answer["memory"]
    experts = f", {model['experts']} experts, {model['top_k']} a token" if model["experts"] > 1 else ""
    given = {name: " (given)" for name in chip["given"]}
    if chip["mesh"] == "torus":
        ways = "both ways" if chip["ways"] == 2 else "one way"
        mesh = f"torus axes of {chip['axis_bytes_per_s'] / 1e9:g} GB/s {ways}{given.get('bandwidth', '')}"
        dealt = ", ".join(f"{count} for {kind}" for kind, count in chip["axes"].items())
        mesh += f" ({dealt})" if dealt else ""
    else:
        mesh = f"nodes of {chip['node_size']}{given.get('node', '')}, {chip['link_bytes_per_s'] / 1e9:g} GB/s inside"
        mesh += given.get("bandwidth", "")
        mesh += ", switches reduce" if chip["sharp"] else ""
    network = chip["network_bytes_per_s"]
    mesh += f", network {network / 1e9:g} GB/s{given.get('network', '')}" if network else ", network unknown"
    size = f", {_both(chip['memory_bytes'])}{given.get('memory', '')}" if chip["memory_bytes"] else ", memory unknown"
    chosen, stage = answer["sharding"]["chosen"], answer["sharding"]["stage_blocks"]
    uneven = f" (stages of {stage} blocks and of fewer: counted as of {stage})" if model["blocks"] % stage else ""
    return [
        f"{model['name']}: {_many(model['blocks'], 'block')}, D = {model['d_model']} -> F = {model['d_ff']} "
        f"-> D{experts}; {memory['parameters']:,} parameters",
        f"{chip['name']}: {chip['flops']:.4g} FLOP/s{given.get('flops', '')}, {mesh}{size}",
        *_wrapped(chip["source"], "  "),
        f"{_many(answer['sharding']['devices'], 'device')}: {_degrees(answer['sharding'])}"
        + (f" ({chosen})" if chosen else "")
        + uneven,
    ]


def _degrees(sharding: dict) -> str:
    names = {"fsdp": "fsdp X", "tp": "tp Y", "dp": "dp", "ep": "ep", "pp": "pp"}
    used = [f"{name} = {_short(sharding[kind])}" for kind, name in names.items() if sharding[kind] != 1]
    return ", ".join(used) or "not sharded"


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
    memory, devices = answer["memory"], answer["sharding"]["devices"]
    dtypes = memory["dtypes"]
    weights = dtypes["weights"] + (f" and {dtypes['copy']}" if dtypes["copy"] != "none" else "")
    rows = [
        (f"weights, {weights}", memory["weights_bytes"], ""),
        (f"gradients, {dtypes['gradients']}", memory["gradients_bytes"], ""),
        (f"optimizer, {dtypes['optimizer']}", memory["optimizer_bytes"], ""),
        ("state", memory["state_bytes"], "the three together"),
    ]
    of_token = f"{memory['saved_bytes_per_token']:,} bytes a token: {SAVED[memory['saved']]}"
    tokens = _many(memory["tokens"], "token")
    at_once = " at once" if answer["pace"]["gathers"] > 1 else ""
    rows.append((f"saved for {tokens}{at_once}, {dtypes['activations']}", memory["saved_bytes"], of_token))
    lines = [f"{'MEMORY in training':<44}{'GB':>12}{'GiB':>12}"]
    lines += [
        f"  {name:<42}{_plain(size / GB, 2):>12}{_plain(size / GIB, 2):>12}   {note}".rstrip()
        for name, size, note in rows
    ]
    for reading in memory["readings"]:
        whole = reading["whole_bytes"]
        state, saved = (_plain(memory[key] / GB, 2) for key in ("state_bytes", "saved_bytes"))
        kept = f" + {_plain(whole / GB, 2)} GB" if whole else ""
        lines.append(f"  {READING[reading['reading']]}: ({state} + {saved}) GB / N{kept}")
        for size, least in reading["least_devices"].items():
            none = f"fits {size} at no N: {_both(whole)} stay on each device"
            lines.append("    " + (f"fits {size} from N = {least:,} on" if least else none))
        fits = {True: ": it fits", False: ": too much", None: ""}[reading["fits"]]
        replicas = (
            f" (the state whole in each of {copies:,} replicas)" if (copies := answer["sharding"]["dp"]) > 1 else ""
        )
        on_each = f"on each of these {devices:,.0f}" if devices > 1 else "on this one"
        lines.append(f"    {on_each}{replicas}: {_both(reading['device_bytes'])}{fits}")
    if memory["gathered_bytes"]:
        kept = answer["sharding"]["pp"] > 1 and answer["pace"]["gathers"] == 1
        what = "counted, kept for all microbatches: a stage's" if kept else "not counted, alive for a moment: a block's"
        lines.append(f"  {what} gathered weights, {_both(memory['gathered_bytes'])}")
    return lines


def _pace(answer: dict) -> list[str]:
    pace, flops = answer["pace"], answer["chip"]["flops"]
    lines = [
        f"CHIPS OR WIRES, {pace['step']} pass of one block"
        if pace["step"] == "forward"
        else "CHIPS OR WIRES, one block, forward and backward pass",
        f"  {'':<9}{'term':<22}{'over':<11}{'V, fixed':>15}{'V, a token':>13}{'received':>12}{'rate':>13}"
        f"{'time':>11}{'a token':>11}",
    ]
    for math in pace["math"]:
        flop = f"{_plain(math['flop_per_token'])} FLOP"
        lines.append(
            f"  {math['step']:<9}{'matmuls':<22}{'chips':<11}{flop:>28}"
            f"{'':>10}{flops / 1e12:>7.4g} TFLOP/s{_time(0):>11}{_time(math['s_per_token']):>11}"
        )
    for term in pace["terms"]:
        crossing = next(c for c in term["crossings"] if c["fabric"] == term["fabric"])
        rate = f"{crossing['bytes_per_s'] / 1e9:.4g} GB/s"
        lines.append(
            f"  {term['step']:<9}{term['name']:<22}{term['fabric']:<11}{_plain(term['fixed_bytes']):>15}"
            f"{_plain(term['bytes_per_token']):>13}{crossing['amount']:>10.4g} V{rate:>13}"
            f"{_time(term['fixed_s']):>11}{_time(term['s_per_token']):>11}"
        )
    lines.append(f"  {_bound_text(pace, answer)}")
    names = {
        "separate": "the kinds beside each other (max)",
        "fabric": "all on one fabric added",
        "shared": "all added (sum)",
    }
    for wires, bound in pace["bounds"].items():
        mark = "  <- taken here" if wires == pace["wires"] else ""
        lines.append(f"    {names[wires] + ':':<36} {_tokens(bound)}{mark}")
    if pace["least_d_ff"]:
        verdict = "so they keep up" if pace["least_d_ff"] <= answer["model"]["d_ff"] else "so they do not keep up"
        lines.append(
            f"  activations need F above {pace['least_d_ff']:,.0f}, and F = {answer['model']['d_ff']:,}: {verdict}"
        )
    best = pace["best_split"]
    for name in ("whole", "real"):
        if best[name]:
            label = "best whole split" if name == "whole" else "best real split"
            lines.append(
                f"  {label:<17} X = {_short(best[name]['fsdp'])}, Y = {_short(best[name]['tp'])}: {_tokens(best[name])}"
            )
    return lines + _at(answer)


def _bound_text(pace: dict, answer: dict) -> str:
    bound = pace["bound"]
    if bound["tokens"] is None:
        slow = f"over the {bound['fabric']} each takes longer than on the chips"
        return f"the wire sets the pace at any number of tokens: {slow}"
    if not bound["tokens"]:
        return "the chips set the pace at any number of tokens"
    return f"bound: {_tokens(bound)}; below it the {bound['step']} pass waits for the {bound['fabric']}"


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
    for step in at["steps"]:
        pace = "the wire sets" if step["pace"] == "wire" else "the chips set"
        times = {name: _time(step[f"{name}_s"]) for name in ("math", "wire", "serial", "overlapped")}
        lines.append(
            f"    {step['step']:<9} matmuls {times['math']}, wires {times['wire']}: {pace} the pace; "
            f"serial {times['serial']}, overlapped {times['overlapped']}"
        )
    best = answer["pace"]["best_split"]
    whole, real = best["least_wire_whole"], best["least_wire_real"]
    splits = [f"X = {_short(split['fsdp'])}, Y = {_short(split['tp'])}" for split in (whole, real)]
    lines.append(f"    wires are busy least, {_time(whole['wire_s'])}, at {splits[0]} (over the reals {splits[1]})")
    return lines


def _techniques(answer: dict) -> list[str]:
    found = answer["techniques"]
    bound = answer["pace"]["bound"]
    if bound["tokens"] == 0:
        return ["WHAT LOWERS THE BOUND: there is none, the chips set the pace at any number of tokens"]
    lines = [
        f"WHAT LOWERS THE BOUND, now {_tokens(bound)}",
        f"  {'technique':<45}{'a device':>10}{'of now':>8}{'memory':>12}{'FLOP':>7}{'bytes':>7}",
    ]
    bytes_now = next(t["wire_bytes"] for t in found if t["name"] == "overlap gathers with matmuls")
    for helps in (True, False):
        if not helps:
            lines.append("  and what does not:")
        for technique in (t for t in found if t["helps"] == helps):
            lines += [_row(technique, bytes_now), *_wrapped(technique["why"], "      ")]
    return lines


def _row(technique: dict, bytes_now: float) -> str:
    if not technique["possible"]:
        return f"  {technique['name']:<45}{'-':>10}"
    tokens, of_now = technique["tokens_per_device"], technique["of_the_bound_now"]
    memory, flop = technique["memory_bytes"], technique["flop"]
    cells = (
        (10, "none" if tokens is None else _plain(tokens, 1) if tokens else "any"),
        (8, f"{of_now:.2f}" if of_now is not None else ""),
        (12, f"{'-' if memory < 0 else '+'}{_plain(abs(memory) / GB, 2)} GB" if memory else ""),
        (7, f"{flop:.2f}" if flop != 1 else ""),
        (7, f"{technique['wire_bytes'] / bytes_now:.2f}" if bytes_now else ""),
    )
    return f"  {technique['name']:<45}" + "".join(f"{cell:>{width}}" for width, cell in cells)
