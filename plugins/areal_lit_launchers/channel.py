"""What a launcher and its own children say to each other: pickled frames over an inherited socket.

A frame is a header (call id, payload bytes, number of buffers), the sizes of the buffers, the payload (pickle
protocol 5) and the buffers: large arrays and tensors travel beside the pickle and are not copied into it.
A frame with an empty payload is a heartbeat.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<QQI")
SIZE = struct.Struct("<Q")
OUT_OF_BAND_BYTES = 1 << 16
ALIGNMENT = 64

Parts = list[Any]
"""The pickle and its out-of-band buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Run a method of the rank's object; or, with an empty name, forget the values of ``dropped`` handles."""

    method: str = ""
    args: tuple[Any, ...] = ()
    dropped: tuple[str, ...] = ()
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


class Handle:
    """A value written once to memory that every rank maps; it pickles as a reference and arrives as the value.

    Ranks keep the value until the handle is dropped here, and must not change it. The memory belongs to no file
    system, so that nothing is left of it after any exit.
    """

    def __init__(self, value: Any) -> None:
        self.key = uuid.uuid4().hex
        parts = [memoryview(part).cast("B") for part in dumps(value)]
        descriptor = _anonymous_file()
        weakref.finalize(self, os.close, descriptor)
        self.location = f"/proc/{os.getpid()}/fd/{descriptor}" if sys.platform == "linux" else f"/dev/fd/{descriptor}"
        header = SIZE.pack(len(parts)) + b"".join(SIZE.pack(part.nbytes) for part in parts)
        offsets = _offsets(len(header), [part.nbytes for part in parts])
        os.ftruncate(descriptor, offsets[-1])
        with mmap.mmap(descriptor, offsets[-1]) as memory:
            memory[: len(header)] = header
            for part, offset in zip(parts, offsets, strict=False):
                memory[offset : offset + part.nbytes] = part

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (self.key, self.location)


_RESOLVED: dict[str, Any] = {}


def resolve(key: str, location: str) -> Any:
    """The value of a handle, mapped on first use (private copy-on-write pages) and kept until it is dropped."""
    if key not in _RESOLVED:
        with open(location, "rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        (count,) = SIZE.unpack_from(memory)
        sizes = [SIZE.unpack_from(memory, SIZE.size * (i + 1))[0] for i in range(count)]
        offsets = _offsets(SIZE.size * (count + 1), sizes)
        _RESOLVED[key] = loads([memory[o : o + n] for o, n in zip(offsets, sizes, strict=False)])
    return _RESOLVED[key]


def forget(keys: Sequence[str]) -> None:
    """Let go of values whose handles were dropped."""
    for key in keys:
        _RESOLVED.pop(key, None)


def _offsets(start: int, sizes: Sequence[int]) -> list[int]:
    """Aligned start of each part, and the end of the last."""
    offsets = []
    for size in sizes:
        start = -(-start // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        start += size
    return [*offsets, start]


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("areal-lit")
    descriptor, path = tempfile.mkstemp(prefix="areal-lit-")
    os.unlink(path)
    return descriptor
