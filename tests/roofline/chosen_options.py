"""The options of a run, as a command line chooses them."""

from pathlib import Path

from roofline.operations.options import Options, refuse_conflicts, resolve, values_given


def options(device="cpu", *, timed=True, world=1, **given) -> Options:
    """The options of a run in /checkout that is given `--ffn-NAME value` for each of `given`."""
    values = {f"ffn_{name}": value for name, value in given.items()}
    chosen = values_given(values.get)
    refuse_conflicts(chosen, timed=timed, is_one_process=world == 1)
    return resolve(chosen, device=device, timed=timed, root=Path("/checkout"), world=world)
