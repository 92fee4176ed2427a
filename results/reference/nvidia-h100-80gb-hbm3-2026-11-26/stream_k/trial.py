"""Ten minutes on an H200: python trial.py [E1 E2 ...] in a checkout, with this folder on PYTHONPATH. --dry compiles all of it for sm_90a.

Every table is of paired rounds: contenders take turns in another order each round, on operands that rotate, behind a spin that hides the
host. A column is the median time and the median ratio of cuBLAS's time to it within rounds.
"""
import contextlib, random, statistics as st, sys, time
import torch
from triton.experimental.gluon.language.nvidia.hopper import tma
from kernels import decode, hopper, persistent, warpgroup
from kernels.machine.compile import compile_for
from kernels.tiles import Config, choose_for
import stream, stream2

CLUSTERS = hasattr(tma, "async_load")  # Triton >= 3.8
DRY = "--dry" in sys.argv
WANTED = [a for a in sys.argv[1:] if a.startswith("E")] or ["E1", "E2", "E3", "E4", "E5", "E6"]
DEVICE = "cpu" if DRY else "cuda"
if DRY:
    hopper.programs = lambda device: 132
CACHE = 60 * 2**20
BIG = Config(128, 256, 64, 8, 4, group_m=8, subtile=4)
UP1, UP8, DOWN1, DOWN8 = (53248, 16384), (6656, 16384), (16384, 53248), (16384, 6656)
NAMES = {UP1: "up tp1", UP8: "up tp8", DOWN1: "down tp1", DOWN8: "down tp8"}


def operands(m, n, k):
    make = torch.empty if DRY else lambda *s, **kw: torch.randn(*s, device=DEVICE, **kw)
    size = 2 * (m * k + n * k + m * n)
    return [(make(m, k, dtype=torch.bfloat16), make(n, k, dtype=torch.bfloat16), torch.empty(m, n, dtype=torch.bfloat16, device=DEVICE))
            for _ in range(max(2, min(8, 8 * CACHE // size)))]


def launches(prepare, sets, *args, **more):
    """Return a call a set of operands. What does not fit is said and left out."""
    made = []
    for x, w, out in sets:
        made.append(prepare(x, w, out, *args, **more))
        if DRY:
            compile_for(90, made[0])
            break
    return [lambda launch=launch, x=x: launch.run(x.device) for launch, (x, _, _) in zip(made, sets)]


def cublas(sets):
    return [lambda x=x, w=w, out=out: torch.mm(x, w.T, out=out) for x, w, out in sets]


def right(name, call, x, w, out):
    out.fill_(float("nan")); call()
    rows = torch.randperm(len(x), device=x.device)[:32]
    want = x[rows].double() @ w.T.double() if w.numel() < 4e8 else x[rows].float() @ w.T.float()
    bad = (out[rows].double() - want).abs().max().item() / want.std().item()
    return bad < 0.16 or print("  WRONG", name, bad)


def turns(title, contenders, sets, flop=None, seconds=3.0, bytes_=None):
    """contenders: {name: calls}; cublas among them."""
    if DRY:
        return print(title, list(contenders))
    contenders = {n: c for n, c in contenders.items() if right(n, c[0], *sets[0])}
    times, begun, number = {n: [] for n in contenders}, time.time(), 0
    while time.time() - begun < seconds or number < 12:
        order = list(contenders); random.Random(number).shuffle(order)
        events = {}
        torch.cuda._sleep(1_500_000)  # some 0.8 ms, in which all is enqueued
        for i, name in enumerate(order):
            a, b = torch.cuda.Event(True), torch.cuda.Event(True)
            a.record(); contenders[name][(number + i) % len(sets)](); b.record(); events[name] = a, b
        torch.cuda.synchronize()
        for name, (a, b) in events.items():
            times[name].append(a.elapsed_time(b) * 1e-3)
        number += 1
    for name, t in times.items():
        ratio = st.median(c / o for c, o in zip(times["cublas"], t))
        rate = f"{flop / st.median(t) / 1e12:7.1f} TFLOP/s" if flop else f"{bytes_ / st.median(t) / 1e12:6.3f} TB/s"
        print(f"{title:22s} {name:34s} {st.median(t) * 1e6:9.1f} us {rate}  x cublas {ratio:.4f}  rounds {number}", flush=True)


def e1():
    """Does the split last wave pay? 12 shapes, both prototypes, and the shape of a gang."""
    for m, shapes in ((256, (UP1, UP8, DOWN1, DOWN8)), (1024, (UP8, UP1, DOWN8)), (4096, (UP8, DOWN8)), (8192, (UP8, DOWN8)), (4096, (DOWN1,))):
        for n, k in shapes:
            sets = operands(m, n, k)
            x, w, out = sets[0]
            now = BIG if DRY else choose_for("warpgroup", x, w)
            tries = {"cublas": cublas(sets), "warpgroup": launches(warpgroup.prepare, sets, now)}
            if (m, n) == (4096, UP8[0]):  # 13 half waves in place of 7 whole: no new code
                tries["warpgroup 128x128"] = launches(warpgroup.prepare, sets, Config(128, 128, 64, 8, 6, group_m=8, subtile=2))
            gangs = ((2, 1),) if m == 256 else ((2, 1), (4, 1), (8, 1), (4, 3)) if m == 1024 else ((2, 2), (4, 1), (4, 3))
            tries["stream gang " + "x".join(map(str, gangs[0]))] = launches(stream.prepare, sets, BIG, gang=gangs[0])
            for gang in gangs:
                tries["stream2 gang %dx%d" % gang] = launches(stream2.prepare, sets, BIG, gang=gang)
            if CLUSTERS:
                import pair_stream
                for gang in ((1, 1),) if m == 256 else ((2, 1), (1, 2)):
                    tries["pair_stream gang %dx%d" % gang] = launches(pair_stream.prepare, sets, BIG, gang=gang)
            if m >= 4096:
                tries["stream2 gang 2x2, tail alone"] = launches(stream2.prepare, sets, BIG, gang=(2, 2), tail_only=True)
            turns(f"{NAMES[n, k]} M={m}", tries, sets, flop=2 * m * n * k, seconds=4 if m <= 1024 else 3.5)


def e2():
    """Decode: 64 rows of w a tile and no split where that is 104 programs; finer runs at up tp 1."""
    for m in (1, 16, 64):
        bm, deep = (16, 10) if m <= 16 else (64, 6)
        for n, k in (UP8, UP1, DOWN8):
            sets = operands(m, n, k)
            usual = Config(bm, 128, 128, 4, 6 if m <= 16 else 4, group_m=1)
            tries = {"cublas": cublas(sets)} | {f"128 rows split {s or 'auto'}": launches(decode.prepare, sets, Config(
                **vars(usual) | {"split": s})) for s in ((0, 6, 13) if (n, k) == UP1 else (0,))}
            if (n, k) != DOWN8:
                tries["64 rows, no split"] = launches(decode.prepare, sets, Config(bm, 64, 128, 4, deep, group_m=1, split=1))
                if m <= 16:
                    tries["64 rows of 256, no split"] = launches(decode.prepare, sets, Config(bm, 64, 256, 4, 5, group_m=1, split=1))
            turns(f"{NAMES[n, k]} M={m}", tries, sets, bytes_=2 * (m * k + n * k + m * n), seconds=2)


def e3():
    """What is in the 15 us that every kernel has beside its steps? Intercept and slope over K, 128 tiles, cold and warm operands."""
    for cold in (True, False):
        for k in (832, 1664, 3328, 6656, 13312):
            sets = operands(256, 16384, k)[: None if cold else 1]
            turns(f"{'cold' if cold else 'warm'} K={k}", {"cublas": cublas(sets), "warpgroup": launches(warpgroup.prepare, sets, BIG)}, sets,
                  flop=2 * 256 * 16384 * k, seconds=1)


def e4():
    """Multicast in clusters of two: speed, and joules (Triton >= 3.8; else left out)."""
    if not CLUSTERS:
        return print("left out: Triton 3.7 has no mbarrier of two CTAs")
    import pair
    for m, (n, k) in ((8192, DOWN8), (4096, UP1), (1024, UP1)):
        sets = operands(m, n, k)
        turns(f"{NAMES[n, k]} M={m}", {"cublas": cublas(sets), "warpgroup": launches(warpgroup.prepare, sets, BIG),
                                      "pair": launches(pair.prepare, sets, BIG)}, sets, flop=2 * m * n * k, seconds=6)
        energy({"warpgroup": launches(warpgroup.prepare, sets, BIG), "pair": launches(pair.prepare, sets, BIG)}, 2 * m * n * k)


def energy(contenders, flop, seconds=3.0):
    if DRY:
        return
    import pynvml
    pynvml.nvmlInit(); handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    for name, calls in contenders.items():
        for warm in (True, False):  # half a second that does not count
            joules, begun, count = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, time.time(), 0
            while time.time() - begun < (0.7 if warm else seconds):
                for call in calls * 2:
                    call(); count += 1
                torch.cuda.synchronize()
            took, joules = time.time() - begun, pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3 - joules
        print(f"  steady {name:22s} {flop * count / took / 1e12:6.1f} TFLOP/s  {joules / (flop * count / 1e12):.4f} J/TFLOP  {joules / took:.0f} W")


def e5():
    """K forwards and backwards in turn: is the panel that L2 still holds read again?"""
    for m, (n, k) in ((4096, UP1), (8192, DOWN8)):
        sets = operands(m, n, k)
        tries = {"cublas": cublas(sets)} | {f"stream2 zigzag {z}": launches(stream2.prepare, sets, BIG, gang=(2, 2), zigzag=z) for z in (False, True)}
        turns(f"{NAMES[n, k]} M={m}", tries, sets, flop=2 * m * n * k, seconds=6)
        energy({n_: c for n_, c in tries.items() if n_ != "cublas"}, 2 * m * n * k)


def e6():
    """Programs: 128 in place of 132 (fast.cu found 132 slower); groups of the raster."""
    m, (n, k) = 8192, DOWN8
    sets = operands(m, n, k)
    tries = {"cublas": cublas(sets)} | {f"stream2 {p} programs group {g}": launches(stream2.prepare, sets, Config(
        **vars(BIG) | {"group_m": g}), gang=(2, 2), programs=p) for p in (128, 132) for g in (2, 4, 8)}
    turns(f"{NAMES[n, k]} M={m}", tries, sets, flop=2 * m * n * k, seconds=8)


for name, step in (("E1", e1), ("E2", e2), ("E3", e3), ("E4", e4), ("E5", e5), ("E6", e6)):
    if name in WANTED:
        print(f"== {name}: {step.__doc__.splitlines()[0]}", flush=True)
        begun = time.time()
        step()
        print(f"   {time.time() - begun:.0f} s", flush=True)
