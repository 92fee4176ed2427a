"""The meaning of kernel benchmark numbers: work, chips, rooflines, measurement and reports.

`roofline.theory` needs the standard library only; `roofline.worker` needs torch, `roofline.pytest_plugin` pytest.
"""

from roofline.operations.contenders import contender

__all__ = ["by_tokens", "contender", "hidden", "load"]
__version__ = "0.1.0"


def load(folder):
    """The run in a folder of results/. Its `frame()` is a pandas DataFrame with a row for each case, whose
    columns results/README.md documents; `roofline.report.plots` draws it. Raises ValueError where there is no run."""
    from roofline.analysis.records import AnalysedRun
    from roofline.store import journal

    return journal.load(folder, AnalysedRun)


def by_tokens(run):
    """The speed of a run that `load` returned, by rows of x: a pandas DataFrame with a row for each M and dtype, whose
    columns results/README.md documents. It has no row where nothing was measured beside a baseline."""
    from roofline.analysis import records, tokens

    return tokens.by_tokens(run, records.frame(run))


def hidden(trace, *others):
    """What a step of yours hides of its communication, by the trace that torch.profiler exported: a file of JSON, or
    that as .gz.

    hidden = (T_gemm + T_comm - T_overlap) / min(T_gemm, T_comm), where T_gemm is the time in which anything computes,
    T_comm that in which anything communicates, and T_overlap that in which either goes on: so it is the time of both at
    once over the shorter. A trace has neither of the two alone. Where they slow one another down, both are longer in
    it, and what that costs is not seen.

    On a GPU kernels count, and copies between GPUs: NCCL's kernels communicate, all others compute. On a CPU gloo:*
    communicates and aten::* computes, but where it waits or copies for a transfer; nested calls count once. All GPUs of
    a trace count as one.

    Time in a kernel of NCCL includes waiting for other ranks. With the traces of these as `others` each kernel takes
    its least time over all of them: the nth of one name and group of ranks is the same one, and who is early waits
    first.

    The result has `hidden` (None where there is nothing to hide), `computing_s`, `matmul_s`, `communication_s`,
    `both_s`, and `streams`, the same as a DataFrame with a row for each stream. `str()` of it is a table and a
    sentence; `plot(path)` draws the timeline. Raises ValueError for a file that is no trace, and for others without the
    same kernels of NCCL.
    """
    from roofline.report import trace as traces

    return traces.hidden(trace, *others)
