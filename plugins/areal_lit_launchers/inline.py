"""The launcher ``inline``: everything in the controller's process, for debugging and notebooks."""

from __future__ import annotations

import contextlib
import copy
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from areal_lit.contracts.component import Component
from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, Process, ProcessSpec, WorkerGroup
from areal_lit.logs import Logs
from areal_lit.scratch import Scratch
from areal_lit.validation import engine_specs, roles

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

logger = logging.getLogger(__name__)

GOODBYE_INTERVAL_S = 0.05


class Inline(Launcher):
    """Calls run in the caller's thread; the engine runs in a thread. Breakpoints work, ``__main__`` too.

    Nothing here can be killed: time-outs are not enforced, and GPUs are shared with the controller. Torch's number of
    threads is the process's, so roles and engine must ask for the same.
    """

    in_process = True

    def __init__(self) -> None:
        self._exit = ExitStack()
        self._num_threads = 0

    def rules(self, trainer: Trainer) -> Iterable[str]:
        wanted = {f"{name}.num_threads": role.num_threads for name, role in roles(trainer).items()}
        wanted |= {f"{spec.name} (inference)": spec.num_threads for spec in engine_specs(trainer)}
        if len({number for number in wanted.values() if number}) > 1:
            listed = ", ".join(f"{name} {number}" for name, number in wanted.items())
            yield f"launcher `inline` is one process with one number of threads, got {listed}; make them equal"

    def setup(self, log_dir: Path, on_death: Callable[[Death], None], logs: Logs) -> None:
        self._on_death = on_death
        scratch = Scratch()
        self._exit.callback(setattr, self, "scratch", None)
        self._exit.callback(scratch.close)
        self.scratch = scratch.path
        self._num_processes = 0

    def start_group(self, spec: GroupSpec) -> WorkerGroup:
        if spec.num_ranks != 1:
            raise ValueError(
                f"launcher `inline` has one rank, but {spec.name!r} wants {spec.num_ranks}; "
                "set its num_ranks to 1 or use `local`"
            )
        self._limit(spec.num_threads)
        group = InlineGroup(spec)
        self._exit.callback(group.stop)
        return group

    def start_process(self, spec: ProcessSpec) -> Process:
        if not spec.target or spec.python:
            raise ValueError(
                f"launcher `inline` runs functions of this interpreter, but {spec.name!r} is a command line or wants "
                "another interpreter; use `local`"
            )
        self._limit(spec.num_threads)
        assert self.scratch is not None, "setup() comes first"
        address = str(self.scratch / f"{self._num_processes}.sock")
        self._num_processes += 1
        process = InlineProcess(spec, address, self._on_death)
        self._exit.callback(process.stop)
        return process

    def stop(self) -> None:
        self._exit.close()

    def _limit(self, num_threads: int) -> None:
        """Give torch so many threads until ``stop``; 0 leaves it alone.

        For the whole process: the limit of BLAS is one for all threads, so setting it per call would let concurrent
        calls change each other's numbers.
        """
        if num_threads and not self._num_threads:
            import torch

            self._exit.callback(torch.set_num_threads, torch.get_num_threads())
            self._exit.callback(setattr, self, "_num_threads", 0)
            self._num_threads = num_threads
            torch.set_num_threads(num_threads)

    def describe(self, name: str, num: int) -> str:
        return "in this process"


class InlineGroup(WorkerGroup):
    """One object in this process."""

    def __init__(self, spec: GroupSpec) -> None:
        from areal_lit.contracts.strategy import Rank

        self.name = spec.name
        self.num_ranks = 1
        self._subject: Any = resolve_name(spec.target)(Rank())

    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        """A future that is done already. ``timeout_s`` cannot be enforced in the caller's own thread.

        Components arrive as copies, as in another process, so that whoever constructed them can use and pickle them
        after a run; everything else arrives as it is.
        """
        if per_rank is not None:
            if len(per_rank) != 1:
                raise ValueError(f"per_rank of {self.name}.{method} needs 1 value, got {len(per_rank)}")
            args = (per_rank[0], *args)
        future: Future[Any] = Future()
        try:
            value = getattr(self._subject, method)(*map(arrived, args))
            if isinstance(value, Future):
                return [value]
            future.set_result(value)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it from the future and counts it
            error.add_note(f"raised by {self.name} rank 0, method {method}, in this process")
            future.set_exception(error)
        return [future]

    def stop(self) -> None:
        subject, self._subject = self._subject, None
        if hasattr(subject, "close"):
            subject.close()


class InlineProcess(Process):
    """A function in a daemon thread. It cannot be ended by force: its client's goodbye ends it."""

    def __init__(self, spec: ProcessSpec, address: str, on_death: Callable[[Death], None]) -> None:
        self.name = spec.name
        self.address = address
        self.ports = ()
        self._spec = spec
        self._on_death = on_death
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"areal-lit-{spec.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._spec.num_threads:
                import torch

                torch.set_num_threads(self._spec.num_threads)  # OpenMP's limit is each thread's own
            resolve_name(self._spec.target)(self.address, **self._spec.kwargs)
        except Exception as error:  # noqa: BLE001 - reported as a death, whatever it was
            if not self._is_stopping:
                reason = f"raised {type(error).__name__}: {error}"
                self._on_death(
                    Death(name=self.name, rank=0, exit_code=None, reason=reason, log_tail=traceback.format_exc())
                )

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, grace_s: float = 5.0) -> None:
        """Say goodbye in the name of a client that never came, and wait for the function to return."""
        self._is_stopping = True
        deadline = time.monotonic() + grace_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_UNIX) as client,
            ):  # not listening, yet or any more
                client.settimeout(GOODBYE_INTERVAL_S)  # its queue fills up when it serves another client
                client.connect(self.address)
            self._thread.join(GOODBYE_INTERVAL_S)
        if self._thread.is_alive():
            logger.warning(
                "%s has not returned %g s after its client left; its thread is abandoned", self.name, grace_s
            )


def arrived(value: Any) -> Any:
    """A component's copy, also from within a tuple."""
    if isinstance(value, tuple):
        return tuple(map(arrived, value))
    return copy.deepcopy(value) if isinstance(value, Component) else value
