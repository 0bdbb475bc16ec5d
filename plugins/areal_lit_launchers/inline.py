"""The launcher ``inline``: everything in the controller's process, for debugging and notebooks."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, Process, ProcessSpec, WorkerGroup


class Inline(Launcher):
    """Calls run in the caller's thread; the engine runs in a thread. Breakpoints work, ``__main__`` too.

    Nothing here can be killed: time-outs are not enforced, and threads and GPUs are shared with the controller.
    """

    in_process = True

    def __init__(self) -> None:
        self._socket_dir = ""
        self._processes: list[InlineProcess] = []

    def setup(self, log_dir: Path, on_death: Callable[[Death], None]) -> None:
        self._on_death = on_death
        base = tempfile.gettempdir()
        self._socket_dir = tempfile.mkdtemp(prefix="arl-", dir=base if len(base) <= 60 else "/tmp")

    def start_group(self, spec: GroupSpec) -> WorkerGroup:
        if spec.num_ranks != 1:
            raise ValueError(
                f"launcher `inline` has one rank, but {spec.name!r} wants {spec.num_ranks}; "
                "set its num_ranks to 1 or use `local`"
            )
        return InlineGroup(spec)

    def start_process(self, spec: ProcessSpec) -> Process:
        if not spec.target or spec.python:
            raise ValueError(
                f"launcher `inline` runs functions of this interpreter, but {spec.name!r} is a command line or wants "
                "another interpreter; use `local`"
            )
        address = os.path.join(self._socket_dir, f"{len(self._processes)}.sock")
        process = InlineProcess(spec, address, self._on_death)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in self._processes:
            process.stop()
        self._processes.clear()
        if self._socket_dir:
            shutil.rmtree(self._socket_dir, ignore_errors=True)

    def describe(self, name: str, num: int) -> str:
        return f"{num} x {name}: in this process"


class InlineGroup(WorkerGroup):
    """One object in this process."""

    def __init__(self, spec: GroupSpec) -> None:
        from areal_lit.contracts.strategy import Rank

        self.name = spec.name
        self.num_ranks = 1
        self._subject: Any = load(spec.target)(Rank())

    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        """A future that is done already. ``timeout_s`` cannot be enforced in the caller's own thread."""
        if per_rank is not None:
            if len(per_rank) != 1:
                raise ValueError(f"per_rank of {self.name}.{method} needs 1 value, got {len(per_rank)}")
            args = (per_rank[0], *args)
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self._subject, method)(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it from the future and counts it
            error.add_note(f"raised by {self.name} rank 0, method {method}, in this process")
            future.set_exception(error)
        return [future]

    def put(self, value: Any) -> Any:
        """The value itself."""
        return value

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
            load(self._spec.target)(self.address, **self._spec.kwargs)
        except Exception as error:  # noqa: BLE001 - reported as a death, whatever it was
            if not self._is_stopping:
                reason = f"raised {type(error).__name__}: {error}"
                self._on_death(
                    Death(name=self.name, rank=0, exit_code=None, reason=reason, log_tail=traceback.format_exc())
                )

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop reporting its end; a function that waits for its client ends when that disconnects."""
        self._is_stopping = True


def load(target: str) -> Any:
    """The object that ``pkg.module:name`` names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
