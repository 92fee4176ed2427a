"""A process that has imported what takes long, and forks a child for each small run of pytest: a second, and not four.

Each child is a run of its own in every way that tests look at: its signals, limits, environment, folder and exit code.
"""

import gc
import json
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import forked

HEAVY = (
    *("torch", "pandas", "seaborn", "pytest_benchmark.plugin"),
    *("roofline.pytest_plugin.narrator", "roofline.supervise.measuring"),
)
MESSAGE_BYTES = 1 << 18
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def environment(pythonpath=ROOT, **variables) -> dict[str, str]:
    """This process's, without the interpreter that tests of kernels switch on, and with these `variables`."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET" and "XDIST" not in name}
    kept["PYTHONPATH"] = os.pathsep.join(map(str, [pythonpath, ROOT, HERE, kept.get("PYTHONPATH", "")]))
    # The plugin takes a second to import, which is as long as a small run.
    kept["PYTEST_ADDOPTS"] = "-p no:hypothesispytest -p no:cacheprovider"
    return kept | {name.upper(): str(value) for name, value in variables.items()}


class Zygote:
    """The tests' end of it."""

    def __init__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        about = {"stdin": subprocess.DEVNULL, "pass_fds": [theirs.fileno()]}
        env = environment(torch_cpp_log_level="ERROR")  # as the conftest of the checkout has it for ranks
        self._process = subprocess.Popen(command, env=env, **about)
        theirs.close()

    def run(self, *words, cwd=ROOT, timeout_s=600.0, file_bytes=None, **variables) -> tuple[int, str]:
        """Exit code and output of `pytest` with these words, in the checkout unless told; `variables` are those of
        `environment`, the others what `begin` takes. Raises TimeoutError."""
        reader, writer = os.pipe()
        about = {"cwd": str(cwd), "env": environment(**variables), "file_bytes": file_bytes}
        request = json.dumps({"arguments": [*map(str, words)]} | about).encode()
        socket.send_fds(self._socket, [request], [writer])
        os.close(writer)
        pid = int(self._socket.recv(MESSAGE_BYTES))
        text, deadline = b"", time.monotonic() + timeout_s
        with open(reader, "rb", buffering=0) as output:
            while select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                if not (more := output.read(1 << 16)):
                    return int(self._socket.recv(MESSAGE_BYTES)), text.decode(errors="replace")
                text += more
        os.kill(pid, signal.SIGKILL)
        self._socket.recv(MESSAGE_BYTES)
        raise TimeoutError(f"pytest {words} took {timeout_s:g} s, and said: {text.decode()}")

    def close(self) -> None:
        self._process.kill()  # it has nothing to save, and what it imported takes long to end
        self._process.wait()
        self._socket.close()


def quicken(drawn: bool, shares: str) -> None:
    """Leave out what takes most of a run's time, and what no test of one looks at. Few look at pictures, or at shares
    in processes of their own, which are then "forks" or "new"."""
    from roofline.pytest_plugin import hooks
    from roofline.report import plots

    sys.modules["pytest_benchmark.plugin"].get_cpu_info = dict  # it asks another process
    if not drawn:
        plots.FIGURES = {}
        plots.timeline = lambda run: None
    if not shares:
        hooks.runs_here = lambda *about: True
    if shares == "forks":
        forked.install()
    gc.freeze()  # at its end pytest collects garbage five times


def begin(
    channel: socket.socket, output: int, *, arguments: list[str], cwd: str, env: dict[str, str],
    file_bytes: int | None = None,
) -> int:  # fmt: skip
    """Be a run of pytest in the folder `cwd`, which prints to `output`, and whose files may have `file_bytes`. Returns
    its exit code.

    It draws pictures where `env` has DRAW, has the shares that SHARES says, and stands in for torchrun with as many
    ranks as RANKS says.
    """
    channel.close()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    # Under nohup, or in the background of a shell script, the tests hand ignored signals on.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["pytest", *arguments]
    sys.path[:1] = [cwd, *env["PYTHONPATH"].split(os.pathsep)]
    quicken("DRAW" in env, env.get("SHARES", ""))
    # pytest would rewrite the asserts of a package with an entry point, and this process has imported it.
    arguments = ["-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]
    return torchrun(int(env["RANKS"]), arguments) if "RANKS" in env else __import__("pytest").main(arguments)


def torchrun(ranks: int, arguments: list[str]) -> int:
    """As `torchrun --nproc-per-node RANKS -m pytest`, with a fork for each rank: the store of all is this process's,
    and where a rank ends with an exit code, the others get SIGTERM, and SIGKILL a while later."""
    from torch.distributed import TCPStore

    if "--benchmark-only" in arguments:  # else Triton is imported later, to interpret
        __import__("collectives.bench.all_gather_matmul")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    about = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1, "GROUP_RANK": 0}
    about |= {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    about |= {"TORCHELASTIC_MAX_RESTARTS": os.environ.get("RESTARTS", 0), "OMP_NUM_THREADS": 1}
    about = {name: str(value) for name, value in about.items()}
    processes = [forked.Fork(partial(be_rank, rank, about, arguments)) for rank in range(ranks)]
    kill_at = math.inf
    while left := [process for process in processes if process.poll() is None]:
        if kill_at == math.inf and any(process.returncode for process in processes):
            kill_at = time.monotonic() + float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
            for process in left:
                process.terminate()
        if time.monotonic() > kill_at:
            for process in left:
                process.kill()
        time.sleep(0.02)
    codes = [process.returncode for process in processes]
    print("exit codes of the ranks:", *codes, flush=True)
    return int(any(codes))


def be_rank(rank: int, about: dict[str, str], arguments: list[str]) -> int:
    """Be a rank's process. Returns its exit code."""
    os.environ.update(about | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    os.closerange(3, 256)  # the store's sockets, among others, which shall end with it
    import planted  # which reads the environment

    if planted.is_struck("words"):
        arguments = [*arguments, planted.WHAT]
    return __import__("pytest").main(arguments)


def main(descriptor: int) -> None:
    """Fork a child for each request, one at a time, and say its process id and its exit code."""
    for name in HEAVY:
        __import__(name)
    channel = socket.socket(fileno=descriptor)
    while True:
        request, files, *_ = socket.recv_fds(channel, MESSAGE_BYTES, 1)
        if not request:
            return  # the tests were killed
        child = forked.Fork(partial(begin, channel, files[0], **json.loads(request)))
        os.close(files[0])
        channel.send(str(child.pid).encode())
        channel.send(str(child.wait()).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
