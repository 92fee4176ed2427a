"""The clocks: what is timed is the call, threads are awake and kept apart, and a late host is seen."""

import os
import threading

import pytest

from roofline.measure import clocks
from roofline.measure.rounds import Plan, Rounds


def test_cuda_clock_times_the_device_when_the_launch_hides_behind_the_preroll(fake_cuda):
    _, kernel = fake_cuda(launch_s=40e-6)
    clock = clocks.CudaClock(preroll_s=100e-6)
    assert clock.turn([kernel] * 5) == pytest.approx([50e-6] * 5)
    assert clock.preroll_s == 100e-6


def test_cuda_clock_drops_samples_of_a_late_host_and_doubles_the_preroll(fake_cuda):
    _, kernel = fake_cuda(launch_s=350e-6)
    clock = clocks.CudaClock(preroll_s=100e-6)
    assert clock.turn([kernel]) == [None]
    assert clock.preroll_s == 200e-6
    assert clock.turn([kernel]) == [None]
    assert clock.turn([kernel]) == pytest.approx([50e-6])
    assert 380e-6 < clock.preroll_s < 400e-6


def test_cuda_clock_forgets_a_hiccup(fake_cuda):
    cuda, kernel = fake_cuda(launch_s=350e-6)
    clock = clocks.CudaClock(preroll_s=100e-6)
    clock.turn([kernel])
    cuda.launch_s = 40e-6
    for _ in range(30):
        assert clock.turn([kernel]) == pytest.approx([50e-6])
    assert clock.preroll_s == 100e-6


def test_cpu_clock_times_each_call_without_collecting_garbage():
    import gc
    import time

    seen = []
    times = clocks.CpuClock().turn([lambda: (time.sleep(0.01), seen.append(gc.isenabled())), lambda: None])
    assert 0.01 <= times[0] < 0.1
    assert times[1] < times[0]
    assert set(seen) == {False}
    assert gc.isenabled()


def test_cpu_clock_leaves_the_calling_thread_free():
    before = os.sched_getaffinity(0)
    during = []
    clocks.CpuClock().turn([lambda: during.append(os.sched_getaffinity(0))])
    assert os.sched_getaffinity(0) == before
    assert len(during[0]) == 1


def test_cpu_clock_calls_a_long_call_once_and_others_until_their_threads_are_awake():
    class Counted:
        long, count = False, 0

        def __call__(self):
            self.count += 1

    short, long = Counted(), Counted()
    long.long = True
    rounds = Rounds({"short": short, "long": long}, clocks.CpuClock(), Plan(warmup_s=0, max_seconds=1e-9), seed=0)
    rounds.visit()  # a warm-up and a round, of a turn each
    assert long.count == 2
    assert short.count > 4


def test_cpu_clock_deals_out_threads_that_a_call_has_just_made():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    ended, seen, made = threading.Event(), [], []

    def call():
        if not made:
            made.append(threading.Thread(target=ended.wait))
            made[0].start()
        seen.append(os.sched_getaffinity(made[0].native_id))

    clocks.CpuClock().turn([call])
    ended.set()
    made[0].join()
    assert seen[0] == {cores[0]}  # as the thread that made it
    assert len(seen[-1]) == 1
    assert seen[-1] != {cores[0]}
