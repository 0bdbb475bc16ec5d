"""The launcher ``local``: processes of this machine, watched, and gone with the controller."""

from __future__ import annotations

import atexit
import contextlib
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, Process, ProcessSpec, WorkerGroup
from areal_lit.logs import LogPipe, Logs
from areal_lit.scratch import Scratch
from areal_lit_launchers.local import commands
from areal_lit_launchers.local.channel import Channel, dumps
from areal_lit_launchers.local.child import Child, stop_children
from areal_lit_launchers.local.forking import FORK_SERVER, ForkServer, can_fork, importing_ahead
from areal_lit_launchers.local.gpus import GpuPool
from areal_lit_launchers.local.group import LocalGroup, LocalRank
from areal_lit_launchers.local.ports import free_ports
from areal_lit_launchers.local.process import LocalProcess, hear
from areal_lit_launchers.local.spawner import Spawner, Started

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
        fork: processes are forked from one that has imported what they need (Linux), which is sooner and shares
            memory; those with an environment or an interpreter of their own are always started afresh.
    """

    def __init__(self, *, hang_timeout_s: float = 10.0, stop_grace_s: float = 2.0, fork: bool = True) -> None:
        if hang_timeout_s < 0 or 0 < hang_timeout_s < 3:
            raise ValueError(
                f"hang_timeout_s must be 0 (off) or >= 3 (heartbeats come each second), got {hang_timeout_s}"
            )
        if stop_grace_s < 0:
            raise ValueError(f"stop_grace_s must be >= 0, got {stop_grace_s}")
        self.hang_timeout_s = hang_timeout_s
        self.stop_grace_s = stop_grace_s
        self.fork = fork
        self._spawner: Spawner | None = None
        self._fork_server: ForkServer | None = None
        self._duties = contextlib.ExitStack()

    @classmethod
    def warm_up(cls, names: Sequence[str]) -> AbstractContextManager[None]:
        return importing_ahead(names) if can_fork() else contextlib.nullcontext()

    def rules(self, trainer: Trainer) -> Iterable[str]:
        """This machine has the GPUs that roles and engines ask for."""
        from areal_lit.validation import engine_specs, roles

        wanted = {
            name: role.num_gpus * role.num_ranks for name, role in roles(trainer).items() if role.colocate_with is None
        }
        wanted |= {spec.name: spec.num_gpus for spec in engine_specs(trainer)}
        gpus = GpuPool()
        for name, num_gpus in wanted.items():
            try:
                gpus.take(num_gpus, name)
            except ValueError as error:
                yield str(error)

    def setup(self, log_dir: Path, on_death: Callable[[Death], None], logs: Logs) -> None:
        if self._spawner is not None:
            raise ValueError("the launcher is set up already; stop() it first")
        log_dir.mkdir(parents=True, exist_ok=True)
        self._log_dir = log_dir
        self._logs = logs
        self._on_death = on_death
        self._gpus = GpuPool()
        self._groups: list[LocalGroup] = []
        self._processes: list[LocalProcess] = []
        with contextlib.ExitStack() as duties:  # each is done whatever the others raise
            duties.callback(self._forget)
            scratch = duties.enter_context(contextlib.closing(Scratch()))
            self.scratch = scratch.path
            self._spawner = duties.enter_context(contextlib.closing(Spawner()))
            self._spawner.tell(f"d{self.scratch}")
            self._fork_server = self._fork_server_for(log_dir / "fork-server.log")
            duties.callback(self._stop_children)
            stopped = threading.Event()
            threading.Thread(target=self._watch, args=(stopped,), name="areal-lit-watch", daemon=True).start()
            duties.callback(stopped.set)
            atexit.register(self.stop)
            duties.callback(atexit.unregister, self.stop)
            duties.callback(setattr, self, "_spawner", None)  # nothing is started any more
            self._duties = duties.pop_all()

    def _fork_server_for(self, log: Path) -> ForkServer | None:
        server = FORK_SERVER.get()
        if server is not None and not self.fork:
            server.kill()
            return None
        if server is not None:
            server.log_to(log, self._logs)
        return server

    def start_group(self, spec: GroupSpec) -> WorkerGroup:
        gpus = self._gpus.take(spec.num_gpus * spec.num_ranks, spec.name)
        (port,) = free_ports(1)
        ranks: list[LocalRank] = []
        group = LocalGroup(spec, ranks, self.stop_grace_s)
        self._groups.append(group)  # before its ranks: what starts half is stopped too
        for rank in range(spec.num_ranks):
            env = commands.environment(spec, gpus, commands.rank_variables(spec, rank, port))
            orders = {"kind": "rank", "rank": rank, "num_ranks": spec.num_ranks, "local_rank": rank}
            child, channel = self._serve(spec, rank, f"{spec.name}-{rank}", env, orders)
            ranks.append(LocalRank(child, channel))
        return group

    def start_process(self, spec: ProcessSpec) -> Process:
        if bool(spec.target) == bool(spec.argv):
            raise ValueError(f"process {spec.name!r} needs a target or an argv, and not both")
        gpus = self._gpus.take(spec.num_gpus, spec.name)
        env = commands.environment(spec, gpus)
        process = self._serve_target(spec, env) if spec.target else self._run_command(spec, env)
        self._processes.append(process)
        return process

    def _serve_target(self, spec: ProcessSpec, env: Mapping[str, str]) -> LocalProcess:
        assert self.scratch is not None
        address = str(self.scratch / f"{len(self._processes)}.sock")
        dumps(dict(spec.kwargs))  # raises the error that says what cannot travel
        orders = {"kind": "process", "address": address, "kwargs": pickle.dumps(dict(spec.kwargs), protocol=5)}
        child, channel = self._serve(spec, 0, spec.name, env, orders, python=spec.python)
        channel.on_bytes = child.seen
        child.at_end.append(lambda death: channel.close())
        hearing = threading.Thread(target=hear, args=(channel, child), name=f"areal-lit-read-{spec.name}", daemon=True)
        hearing.start()
        child.before_end.append(lambda: hearing.join(timeout=2.0))
        return LocalProcess(spec, child, address, (), self.stop_grace_s)

    def _run_command(self, spec: ProcessSpec, env: Mapping[str, str]) -> LocalProcess:
        ports = free_ports(spec.num_ports)
        command = commands.execute(spec, ports)
        child = self._start(spec.name, 0, spec.name, lambda log: self._spawn(command, env, log), is_ours=False)
        address = f"127.0.0.1:{ports[0]}" if ports else ""
        return LocalProcess(spec, child, address, ports, self.stop_grace_s)

    def _serve(
        self, spec: GroupSpec | ProcessSpec, rank: int, log_name: str, env: Mapping[str, str],
        orders: Mapping[str, Any], *, python: str = "",
    ) -> tuple[Child, Channel]:  # fmt: skip
        """Start ``worker.py`` at one end of a socket and tell it what to do."""
        ours, theirs = socket.socketpair()

        def start(log: FileIO) -> Started:
            if self._fork_server is not None and not spec.env and not python:
                return self._fork_server.fork(log_name, theirs, log)
            return self._spawn(commands.serve(python, theirs.fileno(), log_name), env, log, theirs.fileno())

        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            child = self._start(spec.name, rank, log_name, start, is_ours=True)
            undo.pop_all()
        common = {"path": [] if python else sys.path, "target": spec.target}
        message = pickle.dumps({**common, "env": env, "num_threads": spec.num_threads, **orders}, protocol=5)
        with contextlib.suppress(OSError):  # ended at once: the waiting thread reports it
            ours.sendall(struct.pack("<Q", len(message)) + message)
        return child, Channel(ours)

    def _spawn(self, command: list[str], env: Mapping[str, str], log: FileIO, *pass_fds: int) -> Started:
        assert self._spawner is not None
        return self._spawner.spawn(command, env=env, log=log, pass_fds=pass_fds)

    def _start(
        self, name: str, rank: int, log_name: str, start: Callable[[FileIO], Started], *, is_ours: bool
    ) -> Child:
        """A child in the making.

        Args:
            is_ours: it runs ``worker.py``, whose heartbeats are missed and which knows how to show its stacks.
        """
        if self._spawner is None:
            raise ValueError(f"cannot start {name!r}: the launcher is not set up, or stopped; call setup() first")
        log = LogPipe(self._logs.open(self._log_dir / f"{log_name}.log"))
        with log.writer as writer:
            process = start(writer)
        return Child(
            name=name, rank=rank, process=process, log=log, spawner=self._spawner, on_death=self._on_death,
            hang_timeout_s=self.hang_timeout_s if is_ours else 0.0, dumps_stacks=is_ours,
        )  # fmt: skip

    def _watch(self, stopped: threading.Event) -> None:
        """Keep deadlines and listen for heartbeats until the launcher stops."""
        before = time.monotonic()
        while not stopped.wait(WATCH_INTERVAL_S):
            now = time.monotonic()
            if now - before > 2.0:  # this process itself was suspended: nobody's silence counts
                for child in self._children():
                    child.last_seen = now
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
        self._duties.pop_all().close()

    def _forget(self) -> None:
        self.scratch = self._spawner = self._fork_server = None

    def _stop_children(self) -> None:
        for child in self._children():
            child.is_stopping = True
        if self._fork_server is not None and not all(child.process.pid for child in self._children()):
            self._fork_server.kill()  # no farewell to what has not begun
        with contextlib.ExitStack() as duties:
            processes = [process.child for process in self._processes]
            duties.callback(stop_children, processes, Child.terminate, self.stop_grace_s)
            for group in self._groups:
                duties.callback(group.stop)

    def describe(self, name: str, num: int) -> str:
        return f"{num} process{'es' if num > 1 else ''} on {socket.gethostname()}"
