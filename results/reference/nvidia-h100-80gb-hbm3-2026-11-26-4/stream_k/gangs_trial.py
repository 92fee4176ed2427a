"""Candidates by turns beside cuBLAS: python trial1.py OUT.jsonl [--dry]"""
import json, random, statistics as st, sys, time
from dataclasses import asdict, replace
import torch
from kernels import decode, hopper, persistent, warpgroup
from kernels.tiles import Config, choose, choose_for
from kernels.waves import GpuSpec
from roofline.theory import chips
H100 = GpuSpec.of_chip(chips.find('H100 SXM'))
from kernels.machine.compile import compile_for

DRY = "--dry" in sys.argv
OUT = open(sys.argv[1], "a")
DEVICE = "cpu" if DRY else "cuda"
if DRY:
    hopper.programs = lambda device: 132
CACHE = 60 * 2**20
BIG = Config(128, 256, 64, 8, 4, group_m=8, subtile=4)
MID = Config(128, 128, 64, 8, 6, group_m=8, subtile=2)
TALL = Config(256, 128, 64, 8, 4, group_m=8, subtile=4)
TILES = {"big": BIG, "mid": MID, "tall": TALL}
DEEP = [("warpgroup", Config(128, 256, 128, 8, 2, group_m=8, subtile=4)), ("warpgroup", Config(256, 128, 128, 8, 2, group_m=8, subtile=4)), ("warpgroup", Config(128, 128, 128, 8, 3, group_m=8, subtile=2))]
LAYERS = {"up tp8": (6656, 16384), "down tp8": (16384, 6656), "up tp1": (53248, 16384), "down tp1": (16384, 53248)}


def g(tile, gm, gn, shared):
    return "warpgroup", replace(TILES[tile], gang_m=gm, gang_n=gn, shared_waves=shared)


def candidates(m, n, k):
    if m <= 64:
        bm = max(16, m)
        deep = {16: (6, 10, 5), 64: (4, 6, 3)}[bm]
        out = [("decode", Config(bm, 128, 128, 4, deep[0], group_m=1))]
        for split in (0, 1):
            out.append(("decode", Config(bm, 64, 128, 4, deep[1], group_m=1, split=split)))
            out.append(("decode", Config(bm, 64, 256, 4, deep[2], group_m=1, split=split)))
        return out
    plain = [("warpgroup", BIG), ("warpgroup", MID)]
    if m == 128:
        return plain + [*DEEP, g("big", 1, 1, 2), g("big", 1, 2, 2), g("big", 1, 13, 2), g("mid", 1, 1, 2), g("mid", 1, 2, 2), g("mid", 1, 4, 2), g("mid", 1, 26, 2)]
    plain.append(("warpgroup", TALL))
    if m == 256:
        gangs = [*DEEP, g("big", 2, 1, 2), g("big", 2, 2, 2), g("big", 2, 13, 2), g("big", 2, 1, 1), g("big", 2, 2, 1), g("big", 2, 13, 1), g("big", 2, 11, 2), g("tall", 1, 1, 2),
                 g("tall", 1, 2, 2), g("tall", 1, 4, 2), g("tall", 1, 13, 2), g("tall", 1, 26, 2), g("tall", 1, 13, 1), g("tall", 1, 4, 1), g("mid", 2, 2, 2), g("mid", 2, 13, 2), g("mid", 2, 26, 2)]
    elif m == 512:
        gangs = [g("big", 4, 1, 2), g("big", 4, 1, 1), g("big", 4, 3, 2), g("big", 4, 3, 1), g("big", 4, 2, 2), g("big", 4, 13, 2), g("big", 2, 13, 2), g("big", 2, 1, 2), g("tall", 2, 1, 2), g("tall", 2, 2, 2), g("tall", 2, 13, 2), g("mid", 4, 1, 2)]
    elif m == 1024:
        gangs = [g("big", 8, 1, 2), g("big", 8, 1, 1), g("big", 4, 1, 2), g("big", 4, 1, 1), g("big", 4, 3, 2), g("big", 4, 3, 1), g("big", 8, 2, 2), g("big", 8, 2, 1), g("big", 8, 4, 2), g("big", 4, 2, 1), g("tall", 4, 1, 2), g("tall", 4, 2, 2), g("mid", 8, 1, 2), g("big", 2, 2, 1)]
    else:
        gangs = [g("big", 2, 2, 2), g("big", 2, 2, 1), g("big", 4, 1, 2), g("big", 4, 1, 1), g("big", 4, 2, 1), g("big", 4, 3, 1), g("big", 8, 1, 1), g("big", 8, 2, 1), g("big", 2, 1, 1), g("mid", 4, 2, 1)]
        if n * k > 5e8:
            gangs = gangs[:7]
    return plain + gangs


KERNELS = {"warpgroup": warpgroup, "decode": decode, "persistent": persistent}


def operands(m, n, k):
    make = torch.empty if DRY else lambda *s, **kw: torch.randn(*s, device=DEVICE, **kw)
    size = 2 * (m * k + n * k + m * n)
    return [(make(m, k, dtype=torch.bfloat16), make(n, k, dtype=torch.bfloat16), torch.empty(m, n, dtype=torch.bfloat16, device=DEVICE))
            for _ in range(max(2, min(8, 8 * CACHE // size)))]


def turns(layer, m, n, k, seconds):
    sets = operands(m, n, k)
    x, w, out = sets[0]
    tries = candidates(m, n, k)
    if True:
        names = ("decode",) if m <= 64 else ("warpgroup", "persistent")
        for name in names:
            now = choose(name, "sm90", m, n, k, torch.bfloat16, H100) if DRY else choose_for(name, x, w)
            if name == "persistent" or now not in [c for _, c in tries]:
                tries.insert(0, (name, now))
    calls = {}
    if not DRY:
        rows = torch.randperm(m, device="cuda")[:32]
        want = x[rows].float() @ w.T.float()
        spread = want.std().item()
        calls["cublas"] = [lambda x=x, w=w, out=out: torch.mm(x, w.T, out=out) for x, w, out in sets]
    for kernel, config in tries:
        key = f"{kernel} {config}"
        try:
            launches = [KERNELS[kernel].prepare(*one, config) for one in sets[: 1 if DRY else None]]
        except ValueError as error:
            print("  left out", layer, m, key, error, flush=True)
            continue
        if DRY:
            compile_for(90, launches[0])
            continue
        out.fill_(float("nan"))
        launches[0].run(x.device)
        bad = ((out[rows].float() - want).abs().max() / spread).item()
        if not bad < 0.16:
            print("  WRONG", layer, m, key, bad, flush=True)
            continue
        calls[key] = [lambda launch=launch, x=x: launch.run(x.device) for launch in launches]
    if DRY:
        print(layer, m, len(tries), flush=True)
        return
    times, begun, number = {name: [] for name in calls}, time.time(), 0
    while time.time() - begun < seconds or number < 10:
        order = list(calls)
        random.Random(number).shuffle(order)
        events = {}
        torch.cuda._sleep(2_000_000)
        for i, name in enumerate(order):
            a, b = torch.cuda.Event(True), torch.cuda.Event(True)
            a.record()
            calls[name][(number + i) % len(sets)]()
            b.record()
            events[name] = a, b
        torch.cuda.synchronize()
        for name, (a, b) in events.items():
            times[name].append(a.elapsed_time(b) * 1e-3)
        number += 1
    lines = []
    for name, t in times.items():
        pairs = [c / o for c, o in zip(times["cublas"], t)]
        half = number // 2
        lines.append(dict(layer=layer, m=m, n=n, k=k, name=name, us=st.median(t) * 1e6, ratio=st.median(pairs), early=st.median(pairs[:half]), late=st.median(pairs[half:]), rounds=number))
    configs = {f"{kernel} {config}": asdict(config) for kernel, config in tries}
    for line in sorted(lines, key=lambda line: -line["ratio"]):
        OUT.write(json.dumps(line | {"config": configs.get(line["name"])}) + "\n")
        print(f"{layer} M={m:5d} {line['name']:75s} {line['us']:9.1f} us  x {line['ratio']:.4f} ({line['early']:.3f} {line['late']:.3f}) {number}", flush=True)
    OUT.flush()


begun = time.time()
LIMIT = float(next((a[2:] for a in sys.argv if a.startswith("-t")), 1e9))
for m in (256, 1024, 1, 16, 64, 4096, 8192, 512, 128):
    for layer, (n, k) in LAYERS.items():
        if time.time() - begun > LIMIT:
            print("no time for", layer, m)
            continue
        turns(layer, m, n, k, 0.8 if m <= 64 else 1.2)
        if not DRY:
            torch.cuda.empty_cache()
print(f"{time.time() - begun:.0f} s")
