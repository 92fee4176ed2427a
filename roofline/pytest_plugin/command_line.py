"""The beginning of a session, by the command line. What cannot come out is refused before anything is measured."""

import os
import platform
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path

from roofline import operations
from roofline.host import checkout
from roofline.host.machine import choose_device, refuse_tf32
from roofline.host.waiting import PATIENCE_S
from roofline.operations import options as ffn_options
from roofline.store import journal
from roofline.supervise.epochs import Epochs
from roofline.supervise.session import Session


def session_of(config, ranks: Epochs | None) -> Session:
    """The session that begins.

    Raises ValueError for options that do not go together, or that this machine cannot do.
    """
    timed = config.option.benchmark_only
    given = ffn_options.values_given(config.getoption)
    ffn_options.refuse_conflicts(given, timed=timed, is_one_process=not ranks)
    _refuse_plugins(config, timed, ranks)
    if ranks:
        ranks.rendezvous(identity(config.rootpath, config.invocation_params.args))
    device = given.get("device", "auto")
    world = ranks.size if ranks else 1
    resume = given.get("resume")
    held = run = None
    if resume:
        held = journal.hold(resume)
        run = journal.load(resume)
        options = ffn_options.resumed(given, run.metadata, resume)
        _require_same(options, resume, device, world)
        if not run.unfinished:
            raise ValueError(f"--ffn-resume {resume}: nothing is left to measure, each of its cases had its turn")
    else:
        chosen = choose_device(device, timed)
        options = ffn_options.resolve(given, device=chosen, timed=timed, root=config.rootpath, world=world)
    refuse_tf32(options.device, options.dtypes)
    runners = operations.Runners(options)
    return Session(options, runners, ranks, resume=resume, resumed=run, held=held)


def _refuse_plugins(config, timed: bool, ranks: Epochs | None) -> None:
    """Refuse pytest's own options, and those of plugins, that do not go with a run of this kind."""
    kind = "--benchmark-only" if timed else "torchrun"
    if (timed or ranks) and getattr(config.option, "dist", "no") != "no":
        raise ValueError(f"{kind} with pytest-xdist: tests side by side disturb one another; leave out -n")
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if ranks and restarts != "0":
        raise ValueError(f"torchrun --max-restarts {restarts}: a run begins once, and is gone on with; leave it out")
    if ranks and (config.option.usepdb or config.option.trace):
        raise ValueError("--pdb and --trace under torchrun: a debugger stops one process; leave it out, or torchrun")


def _require_same(options: ffn_options.Options, resume: Path, device: str, world: int) -> None:
    """Refuse to go on with a run of another device, or of more or fewer ranks."""
    if options.world != world:
        raise ValueError(f"--ffn-resume {resume}: it is of {options.world} ranks, and these are {world}; start as many")
    if device not in ("auto", options.device):
        raise ValueError(f"--ffn-device {device}: {resume} measured the {options.device}")
    choose_device(options.device, timed=True)


def refuse_selection(options: ffn_options.Options, runners: operations.Runners, cases: list) -> None:
    """Refuse a selection of which nothing can be measured. Raises ValueError."""
    if options.operations and not cases:
        _operations(options, runners)
    if runners.planners and (options.contenders or options.baseline):
        _contenders(options, runners)


def _operations(options: ffn_options.Options, runners: operations.Runners) -> None:
    """Say why the operations that were chosen have no case, where one of them knows."""
    for operation in map(operations.find, runners.planners):
        reason = operation.lacking(options)
        if options.timed and options.world > 1 and not operation.between_ranks:
            reason = "torchrun started several ranks, and it is not between ranks: leave torchrun out"
        if reason:
            raise ValueError(f"--ffn-operations: {operation.name} has no case: {reason}")


def _contenders(options: ffn_options.Options, runners: operations.Runners) -> None:
    """Refuse names that no operation has, and a baseline that is not timed on the device."""
    choices: dict[str, None] = {}
    for operation in operations.OPERATIONS.values():
        choices |= dict.fromkeys(runners.planner(operation).choices())
    for name in options.contenders or ():
        ffn_options.read("contenders", name, partial(ffn_options.one_of, choices))
    if options.baseline:
        timed = runners.planner(operations.find("matmul")).timed_names()
        ffn_options.read("baseline", options.baseline, partial(ffn_options.one_of, timed))


def identity(root: Path, words: list[str]) -> dict:
    """The properties that ranks have in common: versions, commit, and the `words` of the command line."""
    return {
        "Python": platform.python_version(),
        "torch": version("torch"),
        "commit": checkout.commit_of(root),
        "command line": " ".join(word for word in words if not word.startswith("--ffn-results")),
    }


def ranks_of_environment() -> Epochs | None:
    """This process's part among the ranks that torchrun started; None where it is alone. Keeps it off the cores
    of other ranks.

    Raises ValueError where torchrun's variables are incomplete, and OSError where its store does not answer.
    """
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return None
    if lacking := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {', '.join(lacking)}: start several ranks with torchrun "
            "--nproc-per-node N -m pytest ..., or unset WORLD_SIZE"
        )
    from torch.distributed import rendezvous

    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S))))
    except RuntimeError as error:
        raise OSError(f"torchrun's store does not answer: {error}") from None
    del os.environ["WORLD_SIZE"]  # a process that this one begins is no rank
    here = int(os.environ.get("LOCAL_RANK", "0"))
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    first = here * len(cores) // count
    behind = (here + 1) * len(cores) // count
    if of_rank := cores[first:behind]:
        os.sched_setaffinity(0, of_rank)
    return Epochs(store, rank, size)
