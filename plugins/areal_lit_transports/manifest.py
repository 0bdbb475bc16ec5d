"""What every sender does: compare what a strategy yields with what it announced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.types import TensorInfo, WeightSource

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.strategy import Bucket


def announced(source: WeightSource, buckets: Iterator[Bucket]) -> Iterator[tuple[TensorInfo, Tensor]]:
    """The tensors of all buckets with their announcement, in its order. Raises ValueError at the first difference."""
    expected = iter(source.tensors)
    for bucket in buckets:
        for name, tensor in bucket:
            info = next(expected, None)
            got = TensorInfo(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
            if got != info:
                wanted = "nothing more" if info is None else f"{info.name} {info.shape} {info.dtype}"
                raise ValueError(
                    f"weights of version {source.version} differ from the manifest: got {got.name} {got.shape} "
                    f"{got.dtype}, announced {wanted}; Strategy.weights() must yield what Strategy.manifest() "
                    "lists, in its order"
                )
            yield info, tensor
    missing = [info.name for info in expected]
    if missing:
        raise ValueError(
            f"weights of version {source.version} end before the manifest does: {len(missing)} tensors are missing, "
            f"the first is {missing[0]}; Strategy.weights() must yield what Strategy.manifest() lists"
        )
