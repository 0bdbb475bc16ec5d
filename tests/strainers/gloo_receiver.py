"""The engine's half of a transport that broadcasts weights by gloo. Only the standard library and torch."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def join(host, port, rank, size, timeout_s):
    """A process group of one sender (rank 0) and its receivers, beside any default group."""
    timeout = timedelta(seconds=timeout_s)
    store = dist.TCPStore(host, port, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, timeout)


class GlooReceiver:
    """Yields tensors as they are broadcast."""

    def receive(self, params, index, timeout_s):
        try:
            group = join(params["host"], params["port"], index + 1, params["num_receivers"] + 1, timeout_s)
        except dist.DistError as error:
            raise TimeoutError(f"the sender did not come within {timeout_s:g} s: {error}") from error
        for name, shape, dtype in params["tensors"]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            group.broadcast(tensor, 0).wait()
            yield name, tensor
