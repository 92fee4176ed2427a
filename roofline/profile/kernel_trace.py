"""Which kernels each contender ran. Asked when all timing is over: a profiler stays in the process once it was used."""

from dataclasses import dataclass

from roofline import operations
from roofline.measure import device_errors
from roofline.measure.observer import Observer
from roofline.profile import kernel_names

TOPIC = "kernel names"


@dataclass
class KernelTrace(Observer):
    """Journals the names of the kernels that `session`'s run measured and that have none yet.

    Shapes are prepared once more for it, which takes a moment each. Arms are left out: what they run is the matmul of
    the same name and the link's copier. So are tunings: there each candidate says which kernel of ours it is.
    """

    session: object
    lacking = "not all kernels were named"

    def finished(self) -> None:
        session = self.session
        if not kernel_names.available(session.options.device):
            return
        failures: list[str] = []
        for shape, about in session.run.shapes.items():
            names = [name for name in about.measured if "kernel_name" not in about.entrants[name]]
            if about.analysis == "overlap" or operations.find(about.op).mode == "tune" or not names:
                continue
            try:
                found = session.prepared(shape, names)
                named = {
                    name: kernel_names.of_call(found.entrants[name].call) for name in names if name in found.entrants
                }
            except Exception as error:  # a name is not worth a run
                failures.append(device_errors.reason(error))
                if device_errors.device_lost(session.options.device):
                    break
                continue
            found.entrants.clear()  # lets go of operands that are not shared with other shapes
            failures += [found.rejected[name].reason for name in names if name in found.rejected]
            if named:
                session.add({"kind": "kernels", "shape": shape, "kernel_names": named})
        if failures:
            session.note(TOPIC, f"Kernel names: not all were found, {len(failures)} times: {failures[0]}.")
