"""What a launcher and its own children say to each other: pickled frames over an inherited socket.

A frame is a header (call id, payload bytes, number of buffers), the sizes of the buffers, the payload (pickle
protocol 5) and the buffers: large arrays and tensors travel beside the pickle and are not copied into it.
A frame with an empty payload is a heartbeat.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import socket
import struct
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<QQI")
SIZE = struct.Struct("<Q")
OUT_OF_BAND_BYTES = 1 << 16

Parts = list[Any]
"""The pickle and its out-of-band buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Run a method of the rank's object; the last call is a farewell and runs none."""

    method: str = ""
    args: tuple[Any, ...] = ()
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the method returned, or the exception it raised and its traceback as text."""

    value: Any = None
    error: BaseException | None = None
    origin: str = ""


class Channel:
    """One end of the socket. Sending is safe from any thread; one thread receives.

    Args:
        on_bytes: called whenever bytes arrive: a sign of life even in the middle of a long frame.
    """

    def __init__(self, connection: socket.socket, on_bytes: Callable[[], None] = lambda: None) -> None:
        self.connection = connection
        self.on_bytes = on_bytes
        self.lock = threading.Lock()

    def send(self, call_id: int, parts: Parts) -> None:
        """Deliver one frame. Raises OSError when the other end is gone."""
        views = [memoryview(part).cast("B") for part in parts]
        sizes = b"".join(SIZE.pack(view.nbytes) for view in views[1:])
        with self.lock:
            self.connection.sendall(HEADER.pack(call_id, views[0].nbytes, len(views) - 1) + sizes)
            for view in views:
                self.connection.sendall(view)

    def beat(self) -> None:
        """Deliver a heartbeat."""
        with self.lock:
            self.connection.sendall(HEADER.pack(0, 0, 0))

    def receive(self) -> tuple[int, Parts]:
        """The next frame that is no heartbeat. Raises EOFError or OSError when the other end is gone."""
        while True:
            call_id, size, num_buffers = HEADER.unpack(self._read(HEADER.size))
            sizes = [SIZE.unpack(self._read(SIZE.size))[0] for _ in range(num_buffers)]
            if size:
                return call_id, [self._read(size), *(self._read(n) for n in sizes)]

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view.nbytes:
            count = self.connection.recv_into(view)
            if not count:
                raise EOFError("the other end of the channel is closed")
            self.on_bytes()
            view = view[count:]
        return data

    def close(self) -> None:
        """Close the socket under any thread that still reads or writes it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as arrays and refuses what a child could not import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)):
            if value.__module__ == "__main__":
                raise ValueError(
                    f"{value.__qualname__!r} is defined in __main__ (a script or notebook), which worker processes "
                    "do not import; put it in a module that can be imported, or use the launcher `inline`"
                )
            return NotImplemented
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.requires_grad:
            return NotImplemented
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_conj() or value.is_neg():
            return NotImplemented
        return _tensor, (value.contiguous().reshape(-1).view(torch.uint8).numpy(), str(value.dtype), tuple(value.shape))


def _tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(data).view(getattr(torch, dtype.removeprefix("torch."))).reshape(shape)


def dumps(value: Any) -> Parts:
    """The pickle of a value and its large buffers, which alias the value's memory.

    Raises ValueError for what cannot travel to another process: lambdas, local functions, open files, locks, and
    functions and classes of ``__main__``.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=keep_in_band).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"a value cannot be sent to a worker process: {error}; lambdas, functions defined inside functions, open "
            "files and locks do not travel: define it at the top level of a module, or use the launcher `inline`"
        ) from error
    return [stream.getbuffer(), *buffers]


def loads(parts: Sequence[Any]) -> Any:
    """The value of ``dumps``; its arrays use the given buffers' memory."""
    return pickle.loads(parts[0], buffers=parts[1:])
