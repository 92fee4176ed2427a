"""A tuning, as its run goes: it ends when its time is up, and what the rounds of a shape say is kept at once."""

from collections.abc import Callable

from roofline.measure import device_errors
from roofline.measure.observer import Observer
from roofline.store.run import SAVED

COMPILE_S = 1800.0
"""Longest that preparing a shape may take: all candidates of a kernel are compiled then, on however few cores."""

DROPPED = "the table was changed meanwhile: it is no candidate any more"


class Campaign(Observer):
    """Calls `keep(run, shape, folder)` for each shape that has all its rounds; it returns a line to be told, "" where
    it saved nothing, and raises OSError and ValueError. `dropped(run)` are the cases of a run that is gone on with
    which are no candidates any more."""

    def __init__(self, session, keep: Callable[..., str], dropped: Callable[..., list[str]]):
        self._session, self._keep, self._dropped = session, keep, dropped
        session.prepare_s = COMPILE_S

    def begun(self) -> None:
        """The time of the tuning begins. Shapes whose rounds a killed run had, but not their entry, are kept now."""
        tune_s = self._session.options.tune_s
        self._session.close_after(tune_s, f"the {tune_s:g} s of --ffn-tune were over")
        for shape in self._session.run.shapes:
            self.shape_done(shape, lambda text: None)
        for case in self._dropped(self._session.run):
            self._session.not_measured(case, "skipped", DROPPED)

    def shape_done(self, shape: str, say: Callable[[str], None]) -> None:
        """Keep what the rounds of `shape` say, once: somebody may save another one later. A failure is an entry of its
        own; no sample is lost."""
        session = self._session
        if session.run.shapes[shape].saved:
            return
        try:
            if line := self._keep(session.run, shape, session.folder):
                session.add({"kind": "saved", "shape": shape})
                say(line)
        except (OSError, ValueError) as error:
            session.not_measured(f"{shape}-{SAVED}", "failed", device_errors.reason(error))
