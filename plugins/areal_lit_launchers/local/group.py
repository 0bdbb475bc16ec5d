"""The ranks of the launcher ``local``: calls go out, replies come back, deadlines are kept."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from areal_lit.contracts.launcher import Death, GroupSpec, ProcessDied, WorkerGroup
from areal_lit_launchers.local.channel import Call, Channel, Parts, dumps, loads
from areal_lit_launchers.local.child import Child, stop_children


class RemoteTraceback(RuntimeError):
    """The cause of an exception that a rank raised: where it ran, and its traceback there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call on its way."""

    method: str
    future: Future[Any]
    timeout_s: float
    deadline: float


class LocalRank:
    """One rank: its process, its channel and the calls it has not answered."""

    def __init__(self, child: Child, channel: Channel) -> None:
        self.child = child
        self.channel = channel
        self.pending: dict[int, Pending] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._reader = threading.Thread(
            target=self._read, name=f"areal-lit-read-{child.name}-{child.rank}", daemon=True
        )
        channel.on_bytes = child.seen
        child.before_end.append(lambda: self._reader.join(timeout=2.0))
        child.at_end.append(self._fail_all)
        self._reader.start()
        child.watch()

    def call(self, method: str, parts: Parts, timeout_s: float) -> Future[Any]:
        """Send one call; returns when it is on its way."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._send_lock:
            with self._lock:
                if self.child.death is not None:
                    future.set_exception(ProcessDied(str(self.child.death)))
                    return future
                number = next(self._numbers)
                deadline = time.monotonic() + timeout_s
                self.pending[number] = Pending(method=method, future=future, timeout_s=timeout_s, deadline=deadline)
            self.tell(number, parts)
        return future

    def tell(self, number: int, parts: Parts) -> None:
        """Send a frame; when the rank is dying, its waiting thread reports that and fails what is pending."""
        with contextlib.suppress(OSError):
            self.channel.send(number, parts)

    def check(self, now: float) -> None:
        """Keep the deadlines: a rank that missed one counts as hung."""
        with self._lock:
            late = [number for number, pending in self.pending.items() if now > pending.deadline]
            missed = [self.pending.pop(number) for number in late]
        for call in missed:
            reason = f"did not answer {call.method} within {call.timeout_s:g} s"
            call.future.set_exception(TimeoutError(f"{self.child.name} rank {self.child.rank} {reason}"))
            self.child.hang(reason)
        self.child.check(now)

    def _read(self) -> None:
        while True:
            try:
                number, parts = self.channel.receive()
            except (EOFError, OSError):
                return
            with self._lock:
                pending = self.pending.pop(number, None)
            if pending is not None:
                self._settle(pending, parts)

    def _settle(self, pending: Pending, parts: Parts) -> None:
        try:
            reply = loads(parts)
        except Exception as error:  # noqa: BLE001 - unpickling runs any class's code; the caller gets what it raised
            pending.future.set_exception(error)
            return
        if reply.error is None:
            pending.future.set_result(reply.value)
            return
        where = f"{self.child.name} rank {self.child.rank}, method {pending.method}, host {reply.origin}"
        reply.error.__cause__ = RemoteTraceback(where)
        reply.error.add_note(f"raised by {where.splitlines()[0]}")
        pending.future.set_exception(reply.error)

    def _fail_all(self, death: Death) -> None:
        with self._lock:
            failed = list(self.pending.values())
            self.pending.clear()
        for pending in failed:
            pending.future.set_exception(ProcessDied(f"{death}\n(while it was to answer {pending.method})"))
        self.channel.close()


class LocalGroup(WorkerGroup):
    """Ranks on this machine."""

    def __init__(self, spec: GroupSpec, ranks: Sequence[LocalRank], grace_s: float) -> None:
        self.name = spec.name
        self.num_ranks = spec.num_ranks
        self.ranks = ranks
        self.grace_s = grace_s

    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s of {self.name}.{method} must be > 0, got {timeout_s}")
        if per_rank is None:
            messages = [dumps(Call(method=method, args=args))] * self.num_ranks
        else:
            if len(per_rank) != self.num_ranks:
                raise ValueError(f"per_rank of {self.name}.{method} needs {self.num_ranks} values, got {len(per_rank)}")
            messages = [dumps(Call(method=method, args=(value, *args))) for value in per_rank]
        return [rank.call(method, parts, timeout_s) for rank, parts in zip(self.ranks, messages, strict=True)]

    def stop(self) -> None:
        farewell = dumps(Call(is_last=True))
        farewells = {id(rank.child): rank for rank in self.ranks}
        stop_children(
            [rank.child for rank in self.ranks], lambda child: farewells[id(child)].tell(0, farewell), self.grace_s
        )
