"""How many bytes of tensors a run holds at once: reckoned from tensors without memory, before anything is measured."""

import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Ledger(TorchDispatchMode):
    """Count the bytes of storages that are made while it is entered: `peak_bytes` are the most that lived at once."""

    def __init__(self):
        super().__init__()
        self.peak_bytes = 0
        self._alive = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self._alive:
                self._alive[storage] = storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, sum(self._alive.values()))
        return result


def peak_bytes(cases: list[tuple]) -> int:
    """Return the most bytes that the tensors of `cases`, pairs of a runner and a case, take at once, in a process that
    runs them in this order beside the probes of the roof.

    What libraries take for themselves is not in it. No memory is taken: tensors are torch's FakeTensors.
    """
    try:
        with FakeTensorMode(), Ledger() as ledger:
            probes = cases[0][0].probes() if cases else []
            for runner, case in cases:
                runner.allocate(case)
            del probes
    finally:
        for runner, _ in cases:
            runner.release()  # it keeps fakes
    return ledger.peak_bytes
