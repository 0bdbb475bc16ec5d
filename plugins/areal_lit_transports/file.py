"""The weight transport ``file``: a safetensors file in shared memory or a directory."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import weakref
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.contracts.transport import WeightTransport
from areal_lit.files import writing
from areal_lit.scratch import Scratch
from areal_lit.types import TensorInfo, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.strategy import Bucket, Rank

ALIGNMENT = 64
MORE_ROOM = "enlarge it (docker: --shm-size) or set the transport's `directory`"

DTYPES = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1),
    "int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1), "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}  # fmt: skip
"""Name in safetensors and bytes per element."""


class File(WeightTransport):
    """Writes each version to one file, which receivers see only when it is whole.

    Rank 0 writes; the others take part in gathering. With ``keep`` the same file is written over in each sync:
    its pages are warm, which makes a sync about three times as fast.

    Args:
        directory: where the file goes; by default where the launcher has its temporary files, `local` in shared memory.
            With engines on another machine name a shared directory.
        keep: hold the file (the size of the model) between syncs; False removes it after each.
    """

    receiver = "areal_lit_transports.file_receiver:FileReceiver"

    def __init__(self, *, directory: str | None = None, keep: bool = True) -> None:
        self.directory = directory
        self.keep = keep
        self._own_folder = ""
        self._spare = ""

    def plan(self, version: int, manifest: Sequence[TensorInfo], *, num_receivers: int, directory: str) -> WeightSource:
        unknown = sorted({info.dtype for info in manifest} - set(DTYPES))
        if unknown:
            raise ValueError(f"transport `file` cannot store {unknown}; it stores {', '.join(DTYPES)}")
        folder = self._folder(directory)
        spare, path = str(folder / "weights.spare"), str(folder / f"weights-{version}.safetensors")
        if spare != self._spare:
            self._spare = spare
            weakref.finalize(self, remove, spare)
        check_space(folder, spare, len(header_of(manifest)) + sum(map(size_of, manifest)))
        remove(path)  # a killed run's, whose version of this number was another
        return WeightSource(
            version=version, receiver=self.receiver, params={"path": path, "spare": spare}, tensors=tuple(manifest)
        )

    def _folder(self, directory: str) -> Path:
        if self.directory is None:
            return Path(directory)
        if not self._own_folder:
            scratch = Scratch(Path(self.directory))
            weakref.finalize(self, scratch.close)
            self._own_folder = str(scratch.path)
        return Path(self._own_folder)

    def send(self, source: WeightSource, buckets: Iterator[Bucket], rank: Rank) -> None:
        if rank.rank:
            for _ in buckets:
                pass
            return
        header = header_of(source.tensors)
        spare = source.params["spare"]
        memory = mapped(spare, len(header) + sum(map(size_of, source.tensors)), keep=self.keep)
        memory[: len(header)] = header
        offset = len(header)
        for bucket in buckets:
            for _, tensor in bucket:
                write(memory, offset, tensor)
                offset += tensor.nbytes
        os.rename(spare, source.params["path"])

    def finish(self, source: WeightSource) -> None:
        if not self.keep:
            remove(source.params["spare"])
            remove(source.params["path"])
            return
        with contextlib.suppress(FileNotFoundError):  # the sync failed before the file was whole
            os.rename(source.params["path"], source.params["spare"])


def size_of(info: TensorInfo) -> int:
    """Bytes of a tensor's data."""
    return prod(info.shape) * DTYPES[info.dtype][1]


def header_of(manifest: Sequence[TensorInfo]) -> bytes:
    """The safetensors header, padded with spaces so that the data starts aligned."""
    entries = {}
    begin = 0
    for info in manifest:
        end = begin + size_of(info)
        entries[info.name] = {"dtype": DTYPES[info.dtype][0], "shape": list(info.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


_KEPT: dict[tuple[int, int, int], mmap.mmap] = {}
"""The sender's mapping of the file it wrote last: warm pages are written at the speed of memory."""


def mapped(path: str, size: int, *, keep: bool) -> mmap.mmap:
    """The file of this size, created if need be and mapped for writing. Raises OSError when there is no room."""
    way_out = f"the weights take {size} bytes: {MORE_ROOM}"
    with writing(path, way_out=way_out), open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):  # without its pages a mapping ends the process when memory runs out
            os.posix_fallocate(file.fileno(), 0, size)
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino, size)
        if identity in _KEPT:
            return _KEPT[identity]
        _KEPT.clear()
        memory = mmap.mmap(file.fileno(), size)
        if keep:
            _KEPT[identity] = memory
        return memory


def write(memory: mmap.mmap, offset: int, tensor: Tensor) -> None:
    """A tensor's bytes, from any device, without an extra copy where it is contiguous."""
    import torch

    if tensor.numel():
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        torch.frombuffer(memory, dtype=torch.uint8, count=data.numel(), offset=offset).copy_(data)


def check_space(folder: Path, spare: str, size: int) -> None:
    """Refuse a sync that would fill the file system half way."""
    held = os.stat(spare).st_size if os.path.exists(spare) else 0
    free = shutil.disk_usage(folder).free + held
    if size > free:
        raise OSError(f"the weights take {size} bytes, but {folder} has {free} free; {MORE_ROOM}")


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
