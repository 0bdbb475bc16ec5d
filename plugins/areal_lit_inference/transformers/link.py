"""The engine's end of the connection to its client.

socket ──reader thread──▶ inbox ──▶ decode loop ──▶ outbox ──writer thread──▶ socket
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from areal_lit_inference.transformers import messages
from areal_lit_inference.transformers.messages import Failed, Message, ToEngine

CONNECT_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 2.0


class Link:
    """A connected socket with a reader and a writer thread; neither ever makes the decode loop wait."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.inbox: queue.SimpleQueue[list[ToEngine] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._reader.start()
        self._writer.start()

    def send(self, batch: Sequence[Message]) -> None:
        """Queue messages as one frame."""
        self._outbox.put(messages.frame(batch))

    def close(self) -> None:
        """Write what is queued, then disconnect and end both threads."""
        self._outbox.put(None)
        self._writer.join(timeout=CLOSE_TIMEOUT_S)
        with contextlib.suppress(OSError):  # the client was first
            self.connection.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=CLOSE_TIMEOUT_S)
        self.connection.close()

    def _read(self) -> None:
        try:
            with self.connection.makefile("rb") as stream:
                while header := stream.read(messages.HEADER_BYTES):
                    self.inbox.put(messages.decode_to_engine(stream.read(int.from_bytes(header, "little"))))
        except OSError:  # disconnected
            pass
        finally:
            self.inbox.put(None)

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self.connection.sendall(data)
            except OSError:  # disconnected; the reader notices too and ends the loop
                return


@contextmanager
def accepted(listener: socket.socket) -> Iterator[Link]:
    """The one client, which learns with what error its context was left, if any."""
    listener.settimeout(CONNECT_TIMEOUT_S)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        raise TimeoutError(f"no client connected to {listener.getsockname()} within {CONNECT_TIMEOUT_S:g} s") from None
    connection.settimeout(None)
    link = Link(connection)
    try:
        yield link
    except BaseException:  # the client learns the reason; the process still fails with it
        link.send([Failed(error=traceback.format_exc())])
        raise
    finally:
        link.close()
