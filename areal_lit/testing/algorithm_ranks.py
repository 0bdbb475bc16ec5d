"""The algorithm suite on processes: objectives on real ranks, whose gradients a collective adds up.

with started_ranks(Local(), tmp_path) as ranks:
    for algorithm in (Plain(), Mine()):
        check_algorithm(algorithm, ranks=ranks)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import Tensor

from areal_lit.batching import atom_tokens, plan_shards, shard, split_minibatches
from areal_lit.contracts import Death, GroupSpec, Launcher, ProcessDied, WorkerGroup
from areal_lit.logs import Logs
from areal_lit.plugins import fingerprint
from areal_lit.roles import Role, RoleGroup
from areal_lit.testing.algorithm_case import AlgorithmCase, Result, assert_same
from areal_lit.testing.strategy_case import PlainSGD
from areal_lit.testing.toy import ToyModel
from areal_lit.testing.toy_strategy import FILE, ToyStrategy
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Metric, ModelSpec

CALL_TIMEOUT_S = 60.0
LR = 0.1
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Processes that algorithms are checked on, one after the other."""

    group: WorkerGroup
    directory: Path
    deaths: SimpleQueue[Death]
    _number: Iterator[int] = field(default_factory=count)

    def start(self, role: str, case: AlgorithmCase, *, max_tokens: int) -> RoleGroup:
        """The role's handle, once every rank holds its toy model; what it held before is gone."""
        strategy = ToyStrategy(max_tokens_per_microbatch=max_tokens)
        optimizer = PlainSGD(lr=LR, max_grad_norm=0.0) if role in case.algorithm.heads else None
        spec = ModelSpec(path="toy", init_seed=case.seed_of(role))
        held = Role(model=spec, strategy=strategy, optimizer=optimizer, num_ranks=self.group.num_ranks)
        started = RoleGroup(role, held, self.group, watch=self._watch, timeout_s=CALL_TIMEOUT_S)
        calls = started.start(
            head=case.algorithm.heads.get(role, "lm"), num_steps=None, algorithm=case.algorithm, callbacks=(),
            fingerprint=fingerprint([case.algorithm, strategy, *([optimizer] if optimizer else [])]),
        )  # fmt: skip
        started.wait(calls, "setup")
        return started

    def weights(self, role: RoleGroup) -> Tensor:
        """All of a role's weights, as they are on its ranks."""
        directory = self.directory / f"weights-{next(self._number)}"
        directory.mkdir(parents=True)
        role.wait(role.save(directory, in_background=False, timeout_s=CALL_TIMEOUT_S), "save")
        return _flat(torch.load(directory / FILE, weights_only=True).values())

    def _watch(self) -> None:
        if not self.deaths.empty():
            raise ProcessDied(str(self.deaths.get()))


@contextmanager
def started_ranks(launcher: Launcher, directory: Path, *, num_ranks: int = 2) -> Iterator[Ranks]:
    """Ranks on this machine, for any number of checks; they end with the context.

    Args:
        launcher: not set up yet.
        directory: for logs and weights.
    """
    deaths: SimpleQueue[Death] = SimpleQueue()
    launcher.setup(directory / "logs", deaths.put, Logs())
    try:
        env = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK)}
        spec = GroupSpec(
            name="policy", target="areal_lit.worker:RoleWorker", num_ranks=num_ranks, num_threads=1, env=env
        )
        yield Ranks(group=launcher.start_group(spec), directory=directory, deaths=deaths)
    finally:
        launcher.stop()


def check_ranks(case: AlgorithmCase, ranks: Ranks) -> None:
    """Two optimizer steps over ranks with unequal numbers of trained tokens do what one process does, to every role."""
    algorithm, num_ranks = case.algorithm, ranks.group.num_ranks
    prepared = algorithm.prepare(case.packed(case.groups()))
    max_tokens = max(int(atom_tokens(prepared).max()), prepared.num_tokens // 7)
    theirs = {role: ranks.start(role, case, max_tokens=max_tokens) for role in algorithm.objectives()}
    if "divergence" in algorithm.needs:
        ranks.start("teacher", case, max_tokens=max_tokens)
    ours = {role: case.model(role) for role in theirs}
    rule = (
        f"the optimizer step of {num_ranks} ranks is not that of one: objectives may look at nothing beyond their "
        "segments and atoms, know of no ranks, and call no collective"
    )
    steps = [algorithm.weigh(minibatch) for minibatch in split_minibatches(prepared, 2, seed=case.seed)]
    are_unequal = [_are_unequal(weighed, num_ranks, max_tokens) for weighed in steps]
    assert any(are_unequal), f"all ranks have equal numbers of trained tokens with seed {case.seed}: take another"
    for weighed in steps:
        alone = case.train(weighed, num_shards=1, max_tokens=1 << 30, models=ours)
        metrics = _stepped(theirs, weighed)
        moved = {role: _flat(ours[role].parameters()) - ranks.weights(group) for role, group in theirs.items()}
        together = Result(
            gradients={role: moved_by / LR for role, moved_by in moved.items()},
            metrics={name: metric for name, metric in metrics.items() if name in alone.metrics},
        )
        assert_same(alone, together, rule)
        for role, model in ours.items():
            _descend(model, alone.gradients[role])


def _are_unequal(weighed: TokenBatch, num_ranks: int, max_tokens: int) -> bool:
    """Whether ranks differ in trained tokens; that atoms reach them whole is asserted."""
    plan = plan_shards(weighed, num_shards=num_ranks, max_tokens=max_tokens, packing="ffd")
    shares = shard(weighed, plan)
    sizes = [
        size
        for share, atoms_of in zip(shares, plan.microbatches, strict=True)
        for microbatch, atoms in zip(share, atoms_of, strict=True)
        if len(atoms)
        for size in microbatch["atom"].bincount().tolist()
    ]
    assert sorted(sizes) == sorted(weighed["atom"].bincount().tolist()), "an atom was split over micro-batches or ranks"
    return len({sum(int(microbatch["loss_mask"].sum()) for microbatch in share) for share in shares}) > 1


def _stepped(groups: Mapping[str, RoleGroup], weighed: TokenBatch) -> dict[str, Metric]:
    """One optimizer step of every role on its ranks; its metrics, named as those of a case."""
    metrics = {}
    for role, group in groups.items():
        for metric in group.collect(group.optimizer_step(weighed), "optimizer_step"):
            metrics[f"{role}/{metric.name.partition('/')[2]}"] = metric
    return metrics


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _descend(model: ToyModel, gradient: Tensor) -> None:
    """What ``PlainSGD`` does with it."""
    parameters = list(model.parameters())
    with torch.no_grad():
        parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.sub_(LR * part.view_as(parameter))
