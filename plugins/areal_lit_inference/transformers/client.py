"""The controller's end of the engine's socket: numbered calls, coalesced per event-loop turn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

from areal_lit.contracts.launcher import Process
from areal_lit.types import Completion, GenerateRequest
from areal_lit_inference.transformers import messages
from areal_lit_inference.transformers.messages import Call, Cancel, Completed, Failed, Message, Ready, Reply, ToClient

RETRY_S = 0.02
ALIVE_CHECK_S = 0.5

_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "TimeoutError": TimeoutError}


def to_exception(error: str, where: str) -> Exception:
    """The exception for an engine's "Type: message" text; RuntimeError for types that are not passed through."""
    kind, _, text = error.partition(": ")
    known = _ERRORS.get(kind)
    return known(f"{where}: {text}") if known else RuntimeError(f"{where}: {error}")


class Client:
    """A connection to one engine process.

    Everything runs on the event loop that opened it. What is sent in one turn of the loop leaves as one frame, in
    order. When the engine goes, every pending call fails with ConnectionError, and so does every later one. So they do
    once it sent what cannot be read or answered what it was not asked.
    """

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = process.name
        self._process = process
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Completed | Reply]] = {}
        self._abandoned: set[int] = set()
        self._outbox: list[Message] = []
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._lost = ""
        self._receiving = asyncio.create_task(self._receive(), name=f"receive-{self.name}")

    @classmethod
    async def open(cls, process: Process, timeout_s: float) -> Client:
        """Connect and wait until the engine is ready.

        Raises ConnectionError when the process ends first, TimeoutError when it takes longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(process.address)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if not process.is_alive():
                    raise ConnectionError(f"{process.name} ended before it listened; see its log") from None
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{process.name} does not listen after {timeout_s:g} s; see its log") from None
                await asyncio.sleep(RETRY_S)
        client = cls(process, reader, writer)
        try:
            await client._wait_ready(deadline, timeout_s)
        except BaseException:
            await client.close()
            raise
        return client

    async def _wait_ready(self, deadline: float, timeout_s: float) -> None:
        while not self._ready.done():
            await asyncio.wait([self._ready], timeout=ALIVE_CHECK_S)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} listens, but its model is not loaded after {timeout_s:g} s")
        self._ready.result()

    def next_number(self) -> int:
        """A number for a message."""
        return next(self._numbers)

    async def generate(self, request: GenerateRequest) -> Completion:
        """One request's completion. Cancelling the caller frees the engine's slot."""
        message = messages.generate_message(self.next_number(), request)
        try:
            answer = await self._ask(message)
        except asyncio.CancelledError:
            if not self._lost:
                self._send(Cancel(number=message.number))
            raise
        where = f"{self.name}, request {request.request_id}"
        if not isinstance(answer, Completed):
            raise ValueError(f"{where}: the engine answered with a {type(answer).__name__} instead of a completion")
        if answer.error:
            raise to_exception(answer.error, where)
        try:
            return messages.completion(answer)
        except ValueError as error:
            raise ValueError(f"{where}: the engine answered with arrays that cannot be read: {error}") from error

    async def call(self, message: Call) -> Reply:
        """A call's reply; raises what the engine says went wrong."""
        answer = await self._ask(message)
        if not isinstance(answer, Reply):
            raise ValueError(f"{self.name} answered a call with a {type(answer).__name__} instead of a reply")
        if answer.error:
            raise to_exception(answer.error, f"{self.name}, {type(message).__name__.lower()}")
        return answer

    async def close(self) -> None:
        """Send what is queued and disconnect; pending calls fail with ConnectionError."""
        self._flush()
        self._lose(f"the connection to {self.name} was closed")
        self._receiving.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):  # the engine was first
            await self._writer.wait_closed()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def _ask(self, message: Message) -> Completed | Reply:
        if self._lost:
            raise ConnectionError(self._lost)
        future: asyncio.Future[Completed | Reply] = self._loop.create_future()
        number: int = message.number  # type: ignore[attr-defined]
        self._pending[number] = future
        self._send(message)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandoned.add(number)  # its answer may be on the way
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, message: Message) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if not outbox or self._lost:
            return
        try:
            self._writer.write(messages.frame(outbox))
        except messages.UNENCODABLE:
            for message in outbox:
                self._send_alone(message)

    def _send_alone(self, message: Message) -> None:
        """Send it, or fail its own call where it cannot be written."""
        try:
            self._writer.write(messages.frame([message]))
        except messages.UNENCODABLE as error:
            self._pending[message.number].set_exception(  # type: ignore[attr-defined]
                ValueError(f"{self.name}: a {type(message).__name__} cannot be sent: {error}; a number is out of range")
            )

    async def _receive(self) -> None:
        reason = f"{self.name} disconnected"
        try:
            while True:
                header = await self._reader.readexactly(messages.HEADER_BYTES)
                body = await self._reader.readexactly(int.from_bytes(header, "little"))
                for message in messages.decode_to_client(body):
                    if isinstance(message, Failed):
                        reason = f"{self.name} failed:\n{message.error}"
                    else:
                        self._take(message)
        except (asyncio.IncompleteReadError, OSError):
            self._lose(f"{reason} with {len(self._pending)} calls pending; see its log")
        # A frame that cannot be read (engine and client of other versions) or answers what was not asked: nothing after
        # it can be trusted, and every call that waits, now or later, raises this.
        except Exception as error:  # noqa: BLE001
            self._lose(f"{self.name} sent what cannot be read: {type(error).__name__}: {error}")
            self._writer.close()

    def _take(self, message: ToClient) -> None:
        if isinstance(message, Ready):
            self._ready.set_result(None)
        elif isinstance(message, Completed | Reply):
            future = self._pending.get(message.number)
            if future is not None and not future.done():
                future.set_result(message)
            elif message.number in self._abandoned:
                self._abandoned.remove(message.number)
            elif future is None or not future.cancelled():
                raise ValueError(f"an answer to call {message.number}, which was not made or has been answered")

    def _lose(self, reason: str) -> None:
        """Fail everything that waits, now and later."""
        self._lost = self._lost or reason
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionError(reason))
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(reason))
            self._ready.exception()  # seen, also when nobody waits for it any more
