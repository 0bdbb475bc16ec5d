"""A weight transport that broadcasts from rank 0 to engines: no file, no shared memory."""

from __future__ import annotations

import socket

from areal_lit.contracts.transport import WeightTransport
from areal_lit.types import WeightSource


class Gloo(WeightTransport):
    """Broadcasts by gloo.

    Args:
        timeout_s: for engines to join, and for each tensor.
    """

    receiver = "gloo_receiver:GlooReceiver"

    def __init__(self, *, timeout_s: float = 60.0) -> None:
        self.timeout_s = timeout_s

    def plan(self, version, manifest, *, num_receivers, directory):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        params = {
            "host": "127.0.0.1", "port": port, "num_receivers": num_receivers,
            "tensors": [[info.name, list(info.shape), info.dtype] for info in manifest],
        }  # fmt: skip
        return WeightSource(version=version, receiver=self.receiver, params=params, tensors=tuple(manifest))

    def send(self, source, buckets, rank):
        from gloo_receiver import join

        params = source.params
        group = None
        if rank.rank == 0:
            group = join(params["host"], params["port"], 0, params["num_receivers"] + 1, self.timeout_s)
        for bucket in buckets:
            for _, tensor in bucket:
                if group is not None:
                    group.broadcast(tensor.detach().contiguous(), 0).wait()
