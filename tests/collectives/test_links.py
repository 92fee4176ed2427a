"""Links: what arrives, when, and what is said when it does not."""

import pytest
import torch

from collectives.paced import PacedThread, Threaded, Worker
from collectives.transfers import SLICE_BYTES, LinkError, Transfer

COUNT, BYTES = 6, 3 * 2**20
pytestmark = pytest.mark.gpu


@pytest.fixture
def transfers(device):
    """Of 3 MB each: more than a slice."""
    sources = (torch.full((768, 1024), float(chunk), device=device) for chunk in range(1, COUNT + 1))
    return [
        Transfer(chunk, 0, source, torch.full((768, 2048), torch.nan, device=device)[:, :1024])
        for chunk, source in enumerate(sources, 1)
    ]


def run(link, transfers):
    link.start(transfers)
    link.wait(len(transfers))
    link.finish()
    return link.timeline()


def test_paced_link_brings_the_data_in_its_time_and_makes_up_for_late_ones(link, troubled_link, transfers):
    due = [index * BYTES / 1e9 for index in range(1, COUNT + 1)]
    arrivals = run(link(bytes_per_s=1e9), transfers).arrivals_s
    assert all((transfer.target == transfer.chunk).all() for transfer in transfers)
    assert all(arrival >= when for arrival, when in zip(arrivals, due, strict=True))
    late = [run(troubled_link(1, seconds=0.009, bytes_per_s=1e9), transfers).arrivals_s for _ in range(5)]
    assert all(arrivals[1] >= due[1] + 0.0005 for arrivals in late)
    assert min(arrivals[-1] for arrivals in late) < due[-1] + 0.003  # the host may be late now and then


def test_consumer_goes_on_at_the_flag_it_waits_for_and_not_at_the_last(link, transfers):
    wire = link(bytes_per_s=0.2e9)
    wire.start(transfers)
    wire.wait(2)
    wire.finish()
    timeline = wire.timeline()
    (count, began, ended), *_ = timeline.waits
    assert count == 2
    assert began < timeline.arrivals_s[0]
    assert timeline.arrivals_s[1] <= ended < timeline.arrivals_s[2]
    assert timeline.as_dict()["transfers"][0] == (1, 0)


def test_what_is_ready_late_takes_its_time_from_then_on(transfers, device):
    if device == "cuda":
        pytest.skip("there the machine tells: tests/machine/links.py")
    wire, moved_s = PacedThread(1e9), BYTES / 1e9
    wire.start(transfers[:3], ready=1)
    wire.wait(1)
    wire.clock.pass_by(1.0)
    wire.ready(3)
    wire.finish()
    assert wire.timeline().arrivals_s == pytest.approx([moved_s, 1.0 + 2 * moved_s, 1.0 + 3 * moved_s])


def test_run_that_was_left_is_given_up_for_that_of_another_link(link, transfers, device):
    abandoned = link(bytes_per_s=2e6)  # some nine seconds
    abandoned.start(transfers[:3])
    thread = Worker.current
    assert len(run(link(bytes_per_s=1e9), transfers[3:]).arrivals_s) == COUNT - 3
    if device == "cpu":  # a GPU's copier goes on to its end
        abandoned.clock.let_go()
        thread.join()
        assert transfers[2].target.isnan().all()


def test_nothing_is_written_once_the_consumer_has_given_up(link, troubled_link, transfers, monkeypatch, device):
    if device == "cuda":
        pytest.skip("there the copier goes on to its end")
    monkeypatch.setattr(Threaded, "patience_s", 0.05)
    wire = troubled_link(0, seconds=0.3)
    with pytest.raises(LinkError):
        run(wire, transfers[:1])
    target, thread = transfers[0].target.fill_(torch.nan), Worker.current
    run(link(), transfers[1:])  # by another thread: that of the link that was given up ends once it goes on
    wire.clock.let_go()
    thread.join()
    unwritten = target.isnan().all(dim=1).reshape(-1, len(transfers[0].slices(SLICE_BYTES)[0][0])).all(dim=1)
    assert unwritten.tolist() == [False, True, True]  # the one that it was about to write
