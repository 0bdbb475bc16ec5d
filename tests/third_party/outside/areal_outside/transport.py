"""Spool: weights through a pickle-free torch file in a spool directory."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

from areal_lit.contracts import WeightTransport
from areal_lit.types import WeightSource


class Spool(WeightTransport):
    """Write each version with ``torch.save`` and let engines read it with ``weights_only``.

    Args:
        directory: of the files; the system's temporary directory by default.
    """

    receiver = "areal_outside.spool_receiver:SpoolReceiver"

    def __init__(self, *, directory: str | None = None) -> None:
        self.directory = directory

    def plan(self, version, manifest, *, num_receivers, directory):
        path = Path(self.directory or tempfile.gettempdir()) / f"spool-{uuid.uuid4().hex}.pt"
        return WeightSource(
            version=version, receiver=self.receiver, params={"path": str(path)}, tensors=tuple(manifest)
        )

    def send(self, source, buckets, rank):
        import torch

        tensors = {name: tensor.detach().clone() for bucket in buckets for name, tensor in bucket}
        if rank.rank == 0:
            partial = source.params["path"] + ".partial"
            torch.save(tensors, partial)
            os.rename(partial, source.params["path"])

    def finish(self, source):
        Path(source.params["path"]).unlink(missing_ok=True)
