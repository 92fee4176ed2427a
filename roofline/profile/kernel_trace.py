"""Which kernels each contender ran. Asked when all timing is over: a profiler stays in the process once it was used."""

from dataclasses import dataclass

from roofline.measure import device_errors
from roofline.profile import kernel_names
from roofline.tuning import verdict

TOPIC = "kernel names"


@dataclass
class Naming:
    """Journals the names of the kernels that `session`'s run measured and that have none yet.

    Shapes are prepared once more for it, which takes a moment each. Arms are left out: what they run is the matmul of
    the same name and the link's copier. So are tunings: there each candidate says which kernel of ours it is.
    """

    session: object
    what = "not all kernels were named"

    def __call__(self) -> None:
        session = self.session
        if not kernel_names.available(session.options.device):
            return
        failures: list[str] = []
        for shape, about in session.run.shapes.items():
            names = [name for name in about.measured if "kernel_name" not in about.entrants[name]]
            if about.analysis == "overlap" or verdict.is_tuning(about.op) or not names:
                continue
            try:
                found = session.line_up(shape, names)
                named = {name: kernel_names.of_call(found.ready[name]) for name in names if name in found.ready}
            except Exception as error:  # a name is not worth a run
                failures.append(device_errors.reason(error))
                if device_errors.device_lost(session.options.device):
                    break
                continue
            found.ready.clear()  # lets go of operands that are not shared with other shapes
            failures += [found.unable.get(name) or found.wrong.get(name) or "" for name in names if name not in named]
            if named:
                session.add({"kind": "kernels", "shape": shape, "kernel_names": named})
        if failures:
            session.note(TOPIC, f"Kernel names: not all were found, {len(failures)} times: {failures[0]}.")
