"""The engine's half of the weight transport ``file``. Only the standard library and torch are imported here.

The file has the safetensors layout: eight bytes with the length of a JSON header (little endian), the header
(name -> dtype, shape, begin and end of its data), the data.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
POLL_INTERVAL_S = 0.002


class FileReceiver:
    """Yields tensors that alias the mapped file: copy from them before the next version is received.

    The mapping is kept while the sender goes on using the same file, so that later versions find warm pages.
    """

    def __init__(self) -> None:
        self._identity: tuple[int, int, int] | None = None
        self._memory: mmap.mmap | None = None

    def receive(self, params: Mapping[str, Any], index: int, timeout_s: float) -> Iterator[tuple[str, torch.Tensor]]:
        memory = self._map(wait_for(params["path"], timeout_s))
        header_bytes = int.from_bytes(memory[:8], "little")
        header = json.loads(memory[8 : 8 + header_bytes])
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, tensor_at(memory, 8 + header_bytes, entry)

    def _map(self, path: str) -> mmap.mmap:
        with open(path, "r+b") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino, status.st_size)
            if self._memory is None or identity != self._identity:
                self._memory = mmap.mmap(file.fileno(), 0)
                self._identity = identity
        return self._memory


def wait_for(path: str, timeout_s: float) -> str:
    """The path, once it exists: it appears complete."""
    deadline = time.monotonic() + timeout_s
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the weights did not appear at {path} within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)
    return path


def tensor_at(memory: mmap.mmap, start: int, entry: Mapping[str, Any]) -> torch.Tensor:
    """The tensor of one header entry, without a copy where its data is aligned."""
    dtype = DTYPES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    data = torch.frombuffer(memory, dtype=torch.uint8, count=end - begin, offset=start + begin)
    if (start + begin) % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).reshape(entry["shape"])
