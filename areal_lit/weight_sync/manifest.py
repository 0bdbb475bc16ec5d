"""What a strategy yields, compared with what it announced: no transport can forget to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.types import TensorInfo, WeightSource

if TYPE_CHECKING:
    from areal_lit.contracts.strategy import Bucket


def as_announced(source: WeightSource, buckets: Iterator[Bucket]) -> Iterator[Bucket]:
    """The same buckets, each compared with the manifest before it is sent. Raises ValueError where they differ."""
    expected = iter(source.tensors)
    for bucket in buckets:
        for name, tensor in bucket:
            info = next(expected, None)
            got = TensorInfo.of(name, tensor)
            if got != info:
                wanted = "nothing more" if info is None else f"{info.name} {info.shape} {info.dtype}"
                raise ValueError(
                    f"weights of version {source.version} differ from the manifest: got {got.name} {got.shape} "
                    f"{got.dtype}, announced {wanted}; Strategy.weights() must yield what Strategy.manifest() "
                    "lists, in its order"
                )
        yield bucket
    missing = [info.name for info in expected]
    if missing:
        raise ValueError(
            f"weights of version {source.version} end before the manifest does: {len(missing)} tensors are missing, "
            f"the first is {missing[0]}; Strategy.weights() must yield what Strategy.manifest() lists"
        )
