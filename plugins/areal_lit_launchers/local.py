"""The launcher ``local``: processes of this machine, started fresh, watched, and gone with the controller."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, Process, ProcessSpec, WorkerGroup
from areal_lit.logs import DEFAULT_LOGS, LogPipe, Logs
from areal_lit.validation import roles
from areal_lit_launchers.channel import Channel, dumps
from areal_lit_launchers.child import Child, Spawner, stop_children
from areal_lit_launchers.gpus import GpuPool
from areal_lit_launchers.group import LocalGroup, LocalRank
from areal_lit_launchers.ports import free_ports
from areal_lit_launchers.process import LocalProcess

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

WATCH_INTERVAL_S = 0.2


class Local(Launcher):
    """Every rank and engine is a process of this machine, with a log of its own.

    A process that ends or hangs is reported at once; only a server function that returns (its client has said goodbye)
    is not. Nothing outlives the controller, however it ends: children get a
    signal from the kernel, see their socket close, and are killed with their own children by a reaper process.

    Args:
        hang_timeout_s: a rank or engine whose interpreter gives no sign of life for so long counts as
            hung; 0 never. A long computation is no silence: heartbeats come from a thread.
        stop_grace_s: a group or process that is stopped may take so long to end by itself.
    """

    def __init__(self, *, hang_timeout_s: float = 10.0, stop_grace_s: float = 2.0) -> None:
        if hang_timeout_s < 0 or 0 < hang_timeout_s < 3:
            raise ValueError(
                f"hang_timeout_s must be 0 (off) or >= 3 (heartbeats come each second), got {hang_timeout_s}"
            )
        if stop_grace_s < 0:
            raise ValueError(f"stop_grace_s must be >= 0, got {stop_grace_s}")
        self.hang_timeout_s = hang_timeout_s
        self.stop_grace_s = stop_grace_s
        self._spawner: Spawner | None = None

    def rules(self, trainer: Trainer) -> Iterable[str]:
        """This machine has the GPUs that roles and engines ask for."""
        wanted = {
            name: role.num_gpus * role.num_ranks for name, role in roles(trainer).items() if role.colocate_with is None
        }
        if trainer.inference is not None:
            specs = trainer.inference.processes(trainer.policy.model, seed=0, deterministic=False)
            wanted |= {spec.name: spec.num_gpus for spec in specs}
        gpus = GpuPool()
        for name, num_gpus in wanted.items():
            try:
                gpus.take(num_gpus, name)
            except ValueError as error:
                yield str(error)

    def setup(self, log_dir: Path, on_death: Callable[[Death], None], logs: Logs = DEFAULT_LOGS) -> None:
        if self._spawner is not None:
            raise ValueError("the launcher is set up already; stop() it first")
        log_dir.mkdir(parents=True, exist_ok=True)
        self._log_dir = log_dir
        self._logs = logs
        self._on_death = on_death
        self._socket_dir = short_directory()
        self._gpus = GpuPool()
        self._groups: list[LocalGroup] = []
        self._processes: list[LocalProcess] = []
        self._stopped = threading.Event()
        self._spawner = Spawner()
        self._spawner.tell(f"d{self._socket_dir}")
        threading.Thread(target=self._watch, args=(self._stopped,), name="areal-lit-watch", daemon=True).start()
        atexit.register(self.stop)

    def start_group(self, spec: GroupSpec) -> WorkerGroup:
        gpus = self._gpus.take(spec.num_gpus * spec.num_ranks, spec.name)
        (port,) = free_ports(1)
        ranks: list[LocalRank] = []
        group = LocalGroup(spec, ranks, self.stop_grace_s)
        self._groups.append(group)  # before its ranks: what starts half is stopped too
        for rank in range(spec.num_ranks):
            env = {
                **threads(spec.num_threads), **gpus,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(spec.num_ranks), "LOCAL_WORLD_SIZE": str(spec.num_ranks), **spec.env,
            }  # fmt: skip
            orders = {
                "kind": "rank", "path": sys.path, "target": spec.target,
                "rank": rank, "num_ranks": spec.num_ranks, "local_rank": rank,
            }  # fmt: skip
            child, channel = self._serve(spec.name, rank, f"{spec.name}-{rank}", sys.executable, env, orders)
            ranks.append(LocalRank(child, channel))
        return group

    def start_process(self, spec: ProcessSpec) -> Process:
        if bool(spec.target) == bool(spec.argv):
            raise ValueError(f"process {spec.name!r} needs a target or an argv, and not both")
        env = {**threads(spec.num_threads), **self._gpus.take(spec.num_gpus, spec.name), **spec.env}
        process = self._serve_target(spec, env) if spec.target else self._run_command(spec, env)
        self._processes.append(process)
        return process

    def _serve_target(self, spec: ProcessSpec, env: Mapping[str, str]) -> LocalProcess:
        address = os.path.join(self._socket_dir, f"{len(self._processes)}.sock")
        dumps(dict(spec.kwargs))  # raises the error that says what cannot travel
        orders = {
            "kind": "process", "path": [] if spec.python else sys.path, "target": spec.target,
            "address": address, "kwargs": pickle.dumps(dict(spec.kwargs), protocol=5),
        }  # fmt: skip
        python = spec.python or sys.executable
        child, channel = self._serve(spec.name, 0, spec.name, python, env, orders)
        channel.on_bytes = child.seen
        child.at_end.append(lambda death: channel.close())
        hearing = threading.Thread(target=hear, args=(channel, child), name=f"areal-lit-read-{spec.name}", daemon=True)
        hearing.start()
        child.before_end.append(lambda: hearing.join(timeout=2.0))
        return LocalProcess(spec, child, address, (), self.stop_grace_s)

    def _run_command(self, spec: ProcessSpec, env: Mapping[str, str]) -> LocalProcess:
        ports = free_ports(spec.num_ports)
        names = {"port": ports[0], **{f"port{i}": port for i, port in enumerate(ports)}} if ports else {}
        argv = list(spec.argv)
        for name, port in names.items():
            argv = [part.replace(f"{{{name}}}", str(port)) for part in argv]
        if spec.python:
            argv = [spec.python, *argv]
        command = [sys.executable, worker_path(), "exec", str(os.getpid()), *argv]
        child = self._start(spec.name, 0, spec.name, command, env, (), hang_timeout_s=0.0)
        address = f"127.0.0.1:{ports[0]}" if ports else ""
        return LocalProcess(spec, child, address, ports, self.stop_grace_s)

    def _serve(
        self, name: str, rank: int, log_name: str, python: str, env: Mapping[str, str], orders: Mapping[str, Any]
    ) -> tuple[Child, Channel]:
        """Start ``worker.py`` at one end of a socket and tell it what to do."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            command = [python, worker_path(), "serve", str(os.getpid()), str(theirs.fileno()), log_name]
            child = self._start(name, rank, log_name, command, env, (theirs.fileno(),), self.hang_timeout_s)
            undo.pop_all()
        message = pickle.dumps(dict(orders), protocol=5)
        with contextlib.suppress(OSError):  # ended at once: the waiting thread reports it
            ours.sendall(struct.pack("<Q", len(message)) + message)
        return child, Channel(ours)

    def _start(
        self,
        name: str,
        rank: int,
        log_name: str,
        command: list[str],
        env: Mapping[str, str],
        pass_fds: tuple[int, ...],
        hang_timeout_s: float,
    ) -> Child:
        if self._spawner is None or self._stopped.is_set():
            raise ValueError(f"cannot start {name!r}: the launcher is not set up, or stopped; call setup() first")
        log = LogPipe(self._logs.open(self._log_dir / f"{log_name}.log"))
        with log.writer:
            popen = self._spawner.popen(
                command, env={**os.environ, "PYTHONUNBUFFERED": "1", **env}, log=log.writer, pass_fds=pass_fds
            )
        return Child(
            name=name, rank=rank, popen=popen, log=log, spawner=self._spawner, on_death=self._on_death,
            hang_timeout_s=hang_timeout_s, dumps_stacks=bool(pass_fds),
        )  # fmt: skip

    def _watch(self, stopped: threading.Event) -> None:
        """Keep deadlines and listen for heartbeats until the launcher stops."""
        before = time.monotonic()
        while not stopped.wait(WATCH_INTERVAL_S):
            now = time.monotonic()
            if now - before > 2.0:  # this process itself was suspended: nobody's silence counts
                for child in self._children():
                    child.seen()
            before = now
            for group in list(self._groups):
                for rank in group.ranks:
                    rank.check(now)
            for process in list(self._processes):
                process.check(now)

    def _children(self) -> list[Child]:
        ranks = [rank.child for group in self._groups for rank in group.ranks]
        return ranks + [process.child for process in self._processes]

    def stop(self) -> None:
        spawner, self._spawner = self._spawner, None
        if spawner is None:
            return
        atexit.unregister(self.stop)
        self._stopped.set()
        for child in self._children():
            child.is_stopping = True
        with contextlib.ExitStack() as duties:  # each is done whatever the others raise
            duties.callback(shutil.rmtree, self._socket_dir, ignore_errors=True)
            duties.callback(spawner.close)
            processes = [process.child for process in self._processes]
            duties.callback(stop_children, processes, Child.terminate, self.stop_grace_s)
            for group in self._groups:
                duties.callback(group.stop)

    def describe(self, name: str, num: int) -> str:
        return f"{num} process{'es' if num > 1 else ''} on {socket.gethostname()}"


def worker_path() -> str:
    return str(Path(__file__).with_name("worker.py"))


def threads(num_threads: int) -> dict[str, str]:
    """The environment that limits a process to so many CPU threads; torch reads it at import.

    Idle threads spin for half a millisecond and then sleep: trainer, engine and rewards share the cores, and threads
    that spin for long keep each other from running (steps of 0.2 s took 1.8 s); without any spinning, the many short
    parallel regions of a step take 1.7 times as long.
    """
    if not num_threads:
        return {}
    return {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads), "GOMP_SPINCOUNT": "10000"}


def short_directory() -> str:
    """A new directory whose socket paths stay below the 100 bytes that Unix sockets allow."""
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="arl-", dir=base if len(base) <= 60 else "/tmp")


def hear(channel: Channel, child: Child) -> None:
    """Take a process's heartbeats, until it says that its target has returned: then its end is no death."""
    with contextlib.suppress(EOFError, OSError):
        channel.receive()
        child.is_stopping = True
