"""Inside a reward worker: calls rewards one after the other and reports what came of each.

A worker runs its calls in the main thread, where ``signal.alarm`` of third-party verifiers works, in a session of its
own that dies with the controller.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol

from areal_lit.contracts.reward import Reward
from areal_lit.plugins.distributions import check_fingerprint
from areal_lit.rewarding.calls import Item, Outcome, call, describe, set_up
from areal_lit.rewarding.keeper import fork_kept
from areal_lit.rewarding.surroundings import Surroundings

FLUSH_S = 0.02
"""Results are reported at least this often, so that little is computed again when a later call has to be killed."""

COUNTER = struct.Struct("q")


class Progress(Protocol):
    """Counts the calls begun, where the supervisor can read it while a call hangs."""

    def advance(self) -> None: ...


class SharedProgress:
    """A counter in a shared file mapping. One writer; the supervisor reads."""

    def __init__(self, fileno: int) -> None:
        self._map = mmap.mmap(fileno, COUNTER.size)

    def advance(self) -> None:
        COUNTER.pack_into(self._map, 0, self.read() + 1)

    def read(self) -> int:
        """How many calls were begun so far."""
        return int(COUNTER.unpack_from(self._map, 0)[0])


def serve(
    connection: Connection, progress: Progress, rewards: Mapping[str, Reward], *,
    between: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Answer batches until the other end closes: ``(results of the calls, seconds they took)``, in order.

    Args:
        between: called after each call.
    """
    while True:
        try:
            items: list[Item] = connection.recv()
        except (EOFError, OSError):
            return
        # Unpickling runs code of whatever classes an example's fields hold; the batch's calls are counted as errors.
        except Exception as error:  # noqa: BLE001
            connection.send(("unreadable", describe(error)))
            continue
        results: list[list[Outcome]] = []
        flushed = time.monotonic()
        for item in items:
            progress.advance()
            results.append(call(rewards[item.key], item.trajectories))
            between()
            if (now := time.monotonic()) - flushed > FLUSH_S:
                connection.send(("results", results, now - flushed))
                results, flushed = [], now
        if results:
            connection.send(("results", results, time.monotonic() - flushed))


def main(arguments: str) -> None:
    """Entry point of the process; ``arguments`` is the JSON that the supervisor wrote."""
    import numpy  # noqa: F401 - trajectories hold arrays; the first call is not to wait for this

    given: dict[str, Any] = json.loads(arguments)
    fork_kept(given["parent_pid"], (given["connection_fd"], given["progress_fd"]))
    os.set_inheritable(given["connection_fd"], False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    connection = Connection(given["connection_fd"])
    progress = SharedProgress(given["progress_fd"])
    os.close(given["progress_fd"])
    try:
        check_fingerprint(given["fingerprint"])
        rewards: dict[str, Reward]
        rewards, codec = pickle.loads(connection.recv_bytes())
        set_up(rewards, codec)
    # Unpickling imports the user's modules; the reason travels to the controller, which ends the run with it.
    except Exception as error:  # noqa: BLE001
        connection.send(("failed", str(error) if isinstance(error, RuntimeError) else describe(error)))
        return
    connection.send(("ready",))
    serve(connection, progress, rewards, between=Surroundings().restore)
