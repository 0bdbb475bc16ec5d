"""Weight sync of 100M float32 parameters between two processes through shared memory, against a plain copy.

    python benchmarks/weight_sync.py

Both sides in one run, alternating, one thread: ``copy`` is ``Tensor.copy_`` of all parameters between warm tensors
of one process; ``sync`` is from the order to send until the other process has copied all weights into its
parameters. Target: sync at most 3 times copy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from areal_lit.contracts import Death, GroupSpec, Rank, WorkerGroup
from areal_lit.logs import Logs
from areal_lit.types import TensorInfo, WeightSource
from areal_lit_launchers.local import Local
from areal_lit_transports.file import File
from areal_lit_transports.file_receiver import FileReceiver

NUM_TENSORS = 100
TIMEOUT_S = 300.0


class Holder:
    """A process that holds parameters: a trainer that sends them, or an engine that receives them."""

    def __init__(self, rank: Rank) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.receiver = FileReceiver()

    def allocate(self, num_parameters: int, value: float) -> None:
        rows = num_parameters // NUM_TENSORS // 1000
        self.parameters = {f"layer.{i}.weight": torch.full((rows, 1000), value + i) for i in range(NUM_TENSORS)}
        self.other = [tensor.clone() for tensor in self.parameters.values()]

    def manifest(self) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo.of(*named) for named in self.parameters.items())

    def copy(self) -> float:
        """Seconds of the plain copy."""
        start = time.perf_counter()
        for target, tensor in zip(self.other, self.parameters.values(), strict=True):
            target.copy_(tensor)
        return time.perf_counter() - start

    def send(self, transport: File, source: WeightSource) -> None:
        transport.send(source, iter([[item] for item in self.parameters.items()]), self.rank)

    def receive(self, params: dict[str, Any]) -> None:
        for name, tensor in self.receiver.receive(params, 0, TIMEOUT_S):
            self.parameters[name].copy_(tensor)

    def checksum(self) -> float:
        return sum(float(tensor[0, 0]) + float(tensor[-1, -1]) for tensor in self.parameters.values())


def sync(transport: File, version: int, trainer: WorkerGroup, engine: WorkerGroup, directory: str) -> float:
    """Seconds of one sync."""
    manifest = trainer.call("manifest", timeout_s=TIMEOUT_S)[0].result()
    start = time.perf_counter()
    source = transport.plan(version, manifest, num_receivers=1, directory=directory)
    receiving = engine.call("receive", dict(source.params), timeout_s=TIMEOUT_S)[0]
    trainer.call("send", transport, source, timeout_s=TIMEOUT_S)[0].result()
    receiving.result()
    transport.finish(source)
    return time.perf_counter() - start


def complain(death: Death) -> None:
    print(death)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    launcher = Local()
    with tempfile.TemporaryDirectory() as directory:
        launcher.setup(Path(directory), complain, Logs())
        target = f"{Path(__file__).stem}:Holder"
        trainer, engine = (launcher.start_group(GroupSpec(name=n, target=target)) for n in ("trainer", "engine"))
        for group, value in ((trainer, 1.0), (engine, 0.0)):
            group.call("allocate", arguments.parameters, value, timeout_s=TIMEOUT_S)[0].result()
        transport = File()
        first = sync(transport, 0, trainer, engine, directory)
        copies, syncs = [], []
        for version in range(1, arguments.rounds + 1):
            copies.append(trainer.call("copy", timeout_s=TIMEOUT_S)[0].result())
            syncs.append(sync(transport, version, trainer, engine, directory))
        sent, got = (group.call("checksum", timeout_s=TIMEOUT_S)[0].result() for group in (trainer, engine))
        launcher.stop()
    if sent != got:
        raise SystemExit(f"the weights that arrived are not those that were sent: {got} != {sent}")
    copy_s, sync_s = statistics.median(copies), statistics.median(syncs)
    print(f"{arguments.parameters / 1e6:.0f}M float32 parameters, medians of {arguments.rounds} rounds")
    print(f"plain copy  {copy_s:.3f} s")
    print(f"sync        {sync_s:.3f} s  (the first {first:.3f} s)")
    print(f"ratio       {sync_s / copy_s:.2f}  (target: at most 3)")


if __name__ == "__main__":
    main()
