"""The weight transport ``memory``: copies within one process."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areal_lit.contracts.transport import Receiver, WeightTransport
from areal_lit.types import TensorInfo, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.strategy import Bucket, Rank


class Shelf:
    """Tensors on their way: appended by the sender, read by every receiver from the first on."""

    def __init__(self, num_tensors: int) -> None:
        self.num_tensors = num_tensors
        self.items: list[tuple[str, Tensor]] = []
        self.error = ""
        self.changed = threading.Condition()


_SHELVES: dict[str, Shelf] = {}


class Memory(WeightTransport):
    """Copies weights to an engine in the same process; the transport of the launcher ``inline``."""

    receiver = "areal_lit_transports.memory:MemoryReceiver"
    crosses_processes = False

    def plan(self, version: int, manifest: Sequence[TensorInfo], *, num_receivers: int, directory: str) -> WeightSource:
        key = uuid.uuid4().hex
        _SHELVES[key] = Shelf(len(manifest))
        return WeightSource(version=version, receiver=self.receiver, params={"key": key}, tensors=tuple(manifest))

    def send(self, source: WeightSource, buckets: Iterator[Bucket], rank: Rank) -> None:
        shelf = _find(source.params["key"])
        try:
            for bucket in buckets:
                copies = [(name, tensor.detach().clone()) for name, tensor in bucket if rank.rank == 0]
                with shelf.changed:
                    shelf.items += copies
                    shelf.changed.notify_all()
        except BaseException as error:
            with shelf.changed:
                shelf.error = f"{type(error).__name__}: {error}"
                shelf.changed.notify_all()
            raise

    def finish(self, source: WeightSource) -> None:
        _SHELVES.pop(source.params["key"], None)


class MemoryReceiver(Receiver):
    """Yields the copies. Receivers share them: they are to be copied from, not kept."""

    def receive(self, params: Mapping[str, Any], index: int, timeout_s: float) -> Iterator[tuple[str, Tensor]]:
        shelf = _find(params["key"])
        for position in range(shelf.num_tensors):
            deadline = time.monotonic() + timeout_s
            with shelf.changed:
                while len(shelf.items) <= position:
                    if shelf.error:
                        raise ConnectionError(f"the sender of the weights failed: {shelf.error}")
                    if not shelf.changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() > deadline:
                        raise TimeoutError(
                            f"tensor {position + 1} of {shelf.num_tensors} did not come within {timeout_s:g} s"
                        )
                item = shelf.items[position]
            yield item


def _find(key: str) -> Shelf:
    try:
        return _SHELVES[key]
    except KeyError:
        raise ValueError(
            "these weights are not in this process (or their sync is over); the transport `memory` needs the launcher "
            "`inline`, use `file` between processes"
        ) from None
