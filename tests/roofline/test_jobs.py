"""What becomes of those who are blamed for the end of a worker, and which messages of a worker are handled."""

from types import SimpleNamespace

from roofline.store.outcome import FAILED, Outcome
from roofline.supervise.blame import WorkerEnd
from roofline.supervise.jobs import TRIES, Check, Hello, Job, Names
from roofline.supervise.measuring import Measure
from roofline.worker.messages import MESSAGES, Broke, Step, StepBegan


def test_who_has_lost_its_row_is_not_blamed_again_and_the_run_ends():
    """As where what arms are compared with loses the device: no contender can be left out, and all comes again."""
    lost, notes = {}, []
    supervisor = SimpleNamespace(
        outcomes=lost, end_reason="", signals=[], epochs=None, note=lambda *words: notes.append(words)
    )
    supervisor.lose = lambda shape, name, outcome: lost.setdefault(f"{shape}-{name}", outcome)
    job = Job(supervisor)
    job.patience = SimpleNamespace(words="10 s")
    broke = Broke("gemm", Outcome(FAILED, "the device is lost"))
    for ended in range(1 + TRIES):
        assert supervisor.end_reason == "", ended
        job.end(WorkerEnd(StepBegan(Step.TURNS, "up", "gemm"), broke=broke))
    assert supervisor.end_reason == "3 workers ended at their turns: the device is lost"
    assert [*lost] == ["up-gemm"]
    assert len(notes) == TRIES - 1


def test_every_message_is_handled_by_a_job():
    handled = [kind for job in (Hello, Check, Measure, Names) for kind in job.handlers]
    assert {*handled} == {*MESSAGES.values()}
