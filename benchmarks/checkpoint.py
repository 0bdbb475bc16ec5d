"""What a checkpoint costs the loop, saved in the background and saved before going on.

    python benchmarks/checkpoint.py --repeats 7

One rank of the launcher `local` holds a model of 100M float32 parameters with AdamW and takes optimizer steps. Saves
of both kinds alternate between them. Stall: seconds from the save's call until the rank takes the next one, so for a
copy of its state in the background, and for all files otherwise. Later: what the next step takes longer than the median
of those before. Prints both, how steps until the commit compare with those before, and the medians of the sums against
the target. Steps are slowed by whatever else uses the cores and the memory: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from areal_lit.checkpointing import Captured, Checkpoint, CheckpointStore, CheckpointWriter
from areal_lit.contracts import GroupSpec
from areal_lit.logs import Logs
from areal_lit.plugins import fingerprint
from areal_lit.roles import Role, RoleGroup
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import CORE_COLUMNS, TokenBatch
from areal_lit_algorithms.sft import SFT
from areal_lit_launchers.local import Local
from areal_lit_optimizers.adamw import AdamW
from areal_lit_single.strategy import Single

TARGET_S = 0.3
TIMEOUT_S = 600.0
MODEL = {
    "hidden_size": 768, "num_hidden_layers": 13, "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
    "intermediate_size": 2304, "initializer_range": 0.02,
}  # fmt: skip


def batch_of(num_segments: int, length: int) -> TokenBatch:
    num_tokens = num_segments * length
    position_T = torch.arange(length).repeat(num_segments)
    mask_T = position_T > 0
    columns = {
        "token": torch.randint(64, (num_tokens,), generator=torch.Generator().manual_seed(0)),
        "segment": torch.arange(num_segments).repeat_interleave(length),
        "position": position_T,
        "loss_mask": mask_T,
        "token_weight": mask_T / mask_T.sum(),
        "length": torch.full((num_segments,), length),
        "atom": torch.arange(num_segments),
    }
    return TokenBatch(columns=columns, dims=CORE_COLUMNS, num_atoms=num_segments)


class Bench:
    """A policy on its rank, and where its checkpoints go."""

    def __init__(self, group: RoleGroup, writer: CheckpointWriter, batch: TokenBatch) -> None:
        self.group = group
        self.writer = writer
        self.batch = batch
        self.num_saves = 0

    def step(self) -> float:
        """Seconds of one optimizer step."""
        start = time.perf_counter()
        self.group.wait(self.group.optimizer_step(self.batch), "optimizer_step")
        return time.perf_counter() - start

    def save(self, *, in_background: bool) -> tuple[float, list[float]]:
        """Seconds until the rank takes the next call, and of each step until the checkpoint is committed."""
        start = time.perf_counter()
        self.num_saves += 1
        self.writer.write(self.num_saves, lambda path: self._capture(path.resolve(), in_background))
        if not in_background:
            self.writer.wait()
        self.group.end_step()
        stall = time.perf_counter() - start
        steps = [self.step()]
        while not self.writer.is_idle:
            steps.append(self.step())
        self.writer.wait()
        return stall, steps

    def _capture(self, directory: Path, in_background: bool) -> Captured:
        for path in ((directory / "roles"), (directory / "hf")):
            path.mkdir()
        writing = self.group.save(
            directory / "roles", export=directory / "hf", in_background=in_background, timeout_s=TIMEOUT_S
        )
        return Captured(state={}, writing=writing)


def start(launcher: Local, directory: Path) -> RoleGroup:
    role = Role(
        model=tiny_spec(directory, **MODEL), strategy=Single(), optimizer=AdamW(lr=1e-5, schedule="constant"),
        num_threads=1,
    )  # fmt: skip
    ranks = launcher.start_group(GroupSpec(name="policy", target="areal_lit.worker:RoleWorker", num_threads=1))
    group = RoleGroup("policy", role, ranks, watch=lambda: None, timeout_s=TIMEOUT_S)
    parts = [role.strategy, role.optimizer, SFT()]
    futures = group.start(head="lm", num_steps=None, algorithm=SFT(), callbacks=(), fingerprint=fingerprint(parts))
    group.wait(futures, "setup")
    return group


def measure(bench: Bench, repeats: int) -> None:
    bench.step()
    bench.group.wait(bench.group.prepare_save(), "prepare_save")
    bench.step()
    sums: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(repeats):
        plain = statistics.median(bench.step() for _ in range(5))
        for in_background in (True, False):
            stall, steps = bench.save(in_background=in_background)
            later = steps[0] - plain
            sums[in_background].append(stall + later)
            how = "in background" if in_background else "synchronous"
            meanwhile = f"{len(steps)} steps at {statistics.median(steps) / plain:.2f} of their time"
            print(f"{how} {repeat + 1}: stall {stall:.3f} s, later {later:+.3f} s; {meanwhile}", flush=True)
    ours, theirs = (statistics.median(sums[kind]) for kind in (True, False))
    verdict = "below" if ours < TARGET_S else "NOT below"
    print(f"median of sums: {ours:.3f} s in the background, {theirs:.3f} s synchronous; {verdict} {TARGET_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--directory", type=Path, help="where to write; by default the temporary directory")
    arguments = parser.parse_args()
    launcher = Local()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        launcher.setup(directory, print, Logs())
        try:
            group = start(launcher, directory)
            num_parameters = sum(torch.Size(info.shape).numel() for info in group.manifest())
            print(f"{num_parameters / 1e6:.1f}M parameters, AdamW, float32, one thread")
            store = CheckpointStore(directory / "checkpoints", Checkpoint(keep_last=1))
            bench = Bench(group, CheckpointWriter(store, timeout_s=TIMEOUT_S), batch_of(2, 8))
            measure(bench, arguments.repeats)
        finally:
            launcher.stop()


if __name__ == "__main__":
    main()
