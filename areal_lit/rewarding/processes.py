"""The controller's handles on reward workers: a process that can be killed, or a thread under the inline launcher."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO, FileIO
from multiprocessing.connection import Connection
from typing import Any, Protocol

from areal_lit.contracts.reward import Reward
from areal_lit.rewarding.worker import COUNTER, SharedProgress, serve
from areal_lit.text import TextCodec

PIPE_TIMEOUT_S = 30
"""For one message of a worker that stopped reading or writing in the middle of it."""

KEEPER_TIMEOUT_S = 8.0
KILL_TIMEOUT_S = 10.0


class Worker(Protocol):
    """Somewhere that ``serve`` runs."""

    connection: Connection

    def begun(self) -> int:
        """How many calls it has begun since it started."""

    def exit_code(self, wait_s: float = 0.0) -> int | None:
        """None while it lives, and still does after ``wait_s``."""

    def kill(self) -> None:
        """End it, with everything it started, and wait for that within a bound."""


class ProcessWorker:
    """A worker process in a session of its own, with its keeper. It never imports the controller's ``__main__``.

    Args:
        payload: the rewards, pickled by ``pack``.
        log: where its output goes.
        num_threads: of numerical libraries in it.
        fingerprint: of the run's components; with other versions installed it refuses to start.
    """

    def __init__(self, *, payload: bytes, log: FileIO, num_threads: int, fingerprint: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", PIPE_TIMEOUT_S, 0))
        with tempfile.TemporaryFile() as shared, theirs:
            shared.truncate(COUNTER.size)
            self._progress = SharedProgress(shared.fileno())
            arguments = {
                "parent_pid": os.getpid(), "connection_fd": theirs.fileno(), "progress_fd": shared.fileno(),
                "fingerprint": dict(fingerprint),
            }  # fmt: skip
            code = (
                f"import sys; sys.path[:] = {[os.path.abspath(entry) for entry in sys.path]!r}; "
                f"from areal_lit.rewarding.worker import main; main({json.dumps(arguments)!r})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), shared.fileno()),
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": "false"},
            )
        self.connection = Connection(ours.detach())
        try:
            self.connection.send_bytes(payload)
        except OSError:
            # It died at once; the supervisor will see the exit code and read the log.
            return

    def begun(self) -> int:
        return self._progress.read()

    def exit_code(self, wait_s: float = 0.0) -> int | None:
        try:
            return self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.terminate()  # its keeper then ends the worker and all that its rewards started
        self.connection.close()
        if self.exit_code(KEEPER_TIMEOUT_S) is None:
            self._process.kill()
            # Raises TimeoutExpired for a process that the kernel cannot end (stuck in I/O): the run should not hide it.
            self._process.wait(timeout=KILL_TIMEOUT_S)


class _ThreadProgress:
    def __init__(self) -> None:
        self.count = 0

    def advance(self) -> None:
        self.count += 1


class ThreadWorker:
    """The same in a thread of this process. A hung call cannot be ended: ``kill`` abandons the thread."""

    def __init__(self, *, rewards: Mapping[str, Reward]) -> None:
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self._progress = _ThreadProgress()
        self._thread = threading.Thread(
            target=self._run, args=(Connection(theirs.detach()), rewards), name="reward-inline", daemon=True
        )
        self._thread.start()

    def _run(self, connection: Connection, rewards: Mapping[str, Reward]) -> None:
        with connection, suppress(OSError):
            connection.send(("ready",))
            serve(connection, self._progress, rewards)

    def begun(self) -> int:
        return self._progress.count

    def exit_code(self, wait_s: float = 0.0) -> int | None:
        self._thread.join(wait_s)
        return None if self._thread.is_alive() else 1

    def kill(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self._thread.join(timeout=0.2)


class _RewardPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__} is defined in the script or notebook itself, which workers do not import"
            )
        return NotImplemented


def check_travels(rewards: Mapping[str, Reward]) -> None:
    """Raise ValueError naming the reward that cannot be sent to another process, and the way out."""
    for key, reward in rewards.items():
        try:
            _RewardPickler(BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(reward)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"reward {key!r} ({type(reward).__name__}) cannot be sent to the reward pool's processes: {error}. "
                "Put what it uses into an importable module at top level, or use the inline launcher, which scores "
                "in this process"
            ) from error


def pack(rewards: Mapping[str, Reward], codec: TextCodec | None = None) -> bytes:
    """The rewards and the codec as workers receive them. Raises ValueError for a reward that cannot travel."""
    check_travels(rewards)
    return pickle.dumps((dict(rewards), codec), protocol=pickle.HIGHEST_PROTOCOL)
