"""WeightTransport: how weights get from ranks into an engine, and Receiver, its other half."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from areal_lit.contracts.component import Component
from areal_lit.types import TensorInfo, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.strategy import Bucket, Rank


class WeightTransport(Component):
    """Moves one version's weights. ``send`` on every rank and the engines' receivers run at once."""

    receiver: ClassVar[str]
    """``pkg.module:Class`` of the receiving side: one file that imports only the standard library and
    torch, so that it also loads in an engine's own environment."""

    crosses_processes: ClassVar[bool] = True
    """False: sender and receiver must share one process."""

    @abstractmethod
    def plan(self, version: int, manifest: Sequence[TensorInfo], *, num_receivers: int, directory: str) -> WeightSource:
        """Controller, before each sync: rendezvous, paths, ports.

        Args:
            directory: of this run alone, for temporary files; the launcher's ``scratch`` or the run's directory.
        """

    @abstractmethod
    def send(self, source: WeightSource, buckets: Iterator[Bucket], rank: Rank) -> None:
        """Every rank: iterate the buckets to the end and deliver them from rank 0.

        The core compares them with the manifest on the way: iterating raises ValueError where they differ. Whatever is
        raised while iterating must leave ``send``, and no receiver may take a part for a whole version.
        """

    def finish(self, source: WeightSource) -> None:
        """Controller, when all receivers are done or the sync has failed: free what ``plan`` took."""


class Receiver(ABC):
    """The engine's half; constructed once per engine process and kept over versions."""

    @abstractmethod
    def receive(self, params: Mapping[str, Any], index: int, timeout_s: float) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) pairs of one version; raises TimeoutError when nothing comes for ``timeout_s``.

        Args:
            params: the source's ``params``.
            index: of this receiver among all, from 0.
        """
