"""Launcher: what starts, watches and ends processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from areal_lit.contracts.component import Component
from areal_lit.logs import Logs


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process to run beside the controller.

    Args:
        name: role and index, as in ``engine-0``; names the log file.
        target: ``pkg.module:function``, called as ``function(listen_address, **kwargs)``; it returns when its client
            disconnects, also one that only came to do that; or
        argv: a command line; ``{port}`` in it is replaced by a free port (``{port1}``... for more).
        kwargs: picklable arguments of ``target``.
        python: interpreter for ``target`` in another virtualenv; the default is this one.
        env: added to the environment.
        num_threads: CPU threads the process may use (OMP_NUM_THREADS or torch.set_num_threads); 0 leaves it alone.
        num_ports: free ports wanted by ``argv``.
        health_path: an HTTP path on the first port that answers 200 once ready; for ``argv`` only.
        start_timeout_s: until it must listen.
    """

    name: str
    target: str = ""
    argv: tuple[str, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    num_threads: int = 0
    num_ports: int = 1
    num_gpus: float = 0
    health_path: str = ""
    start_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Ranks that hold models together.

    Args:
        name: names logs (``policy-0.log``) and errors.
        target: ``pkg.module:Class``; each rank constructs one with its ``Rank`` and answers ``call``.
        num_threads: per rank.
    """

    name: str
    target: str
    num_ranks: int = 1
    num_threads: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    num_gpus: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that ended or stopped answering, as told to ``on_death``."""

    name: str
    rank: int
    exit_code: int | None
    reason: str
    log_tail: str = ""

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        tail = f"\n--- last lines of its log ---\n{self.log_tail}" if self.log_tail else ""
        return f"{self.name} rank {self.rank} {self.reason}{code}{tail}"


class ProcessDied(RuntimeError):
    """A worker or engine ended or hung; the message carries role, rank, exit code and log tail."""


class Process(ABC):
    """A started process."""

    name: str
    ports: tuple[int, ...]
    address: str
    """``host:port`` or a Unix socket path of the process's ``target`` server."""

    @abstractmethod
    def is_alive(self) -> bool: ...

    @abstractmethod
    def stop(self, grace_s: float = 5.0) -> None:
        """End it and its children: politely, then by force."""


class WorkerGroup(ABC):
    """Ranks that answer method calls."""

    name: str
    num_ranks: int

    @abstractmethod
    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        """Call ``method`` on every rank: ``method(*args)``, or ``method(per_rank[i], *args)`` with ``per_rank``.

        Calls of one rank run in order. A method that returns a ``concurrent.futures.Future`` is answered with what that
        brings, once it is done, and later calls run meanwhile. Components among the arguments arrive as copies; large
        arrays and tensors travel beside the pickle. A future raises what the method raised (with rank, host and remote
        traceback), ProcessDied, or TimeoutError naming method and rank after ``timeout_s``.
        """

    @abstractmethod
    def stop(self) -> None:
        """End all ranks."""


class Launcher(Component):
    """Starts, watches and ends every process of a run."""

    in_process: ClassVar[bool] = False
    """True: everything runs in the controller's process."""

    scratch: Path | None = None
    """From ``setup`` to ``stop``: a directory for files that the run's processes hand each other, such as weights; gone
    with the run however it ends. None: the run's own directory is taken, which every machine sees."""

    @classmethod
    def warm_up(cls, names: Sequence[str]) -> AbstractContextManager[None]:
        """A context in which a run may come whose processes need these modules: they begin to import them.

        Entered before the controller imports anything heavy, so that both go on at once, and left after the run. By
        default nothing is done, and processes import what they need when they are started.

        Args:
            names: modules, and components as ``module:Class``, whose ``preload`` lists more.
        """
        return nullcontext()

    @abstractmethod
    def setup(self, log_dir: Path, on_death: Callable[[Death], None], logs: Logs) -> None:
        """Prepare; ``on_death`` is called from a watcher thread, once per process.

        What a process prints goes to ``log_dir/NAME.log`` through ``areal_lit.logs.LogPipe``, or another way that hides
        secrets and keeps no more than ``logs`` says.
        """

    @abstractmethod
    def start_group(self, spec: GroupSpec) -> WorkerGroup:
        """Start ranks; returns at once, calls wait for them."""

    @abstractmethod
    def start_process(self, spec: ProcessSpec) -> Process:
        """Start a process; returns at once, its server may not listen yet."""

    @abstractmethod
    def stop(self) -> None:
        """End everything that was started, in any state, within seconds; idempotent."""

    def describe(self, name: str, num: int) -> str:
        """Where processes of this name would run, for ``validate``."""
        return f"{num} process{'es' if num > 1 else ''}"
