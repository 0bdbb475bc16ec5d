"""RoleWorker under RoleGroup: batches split over real ranks of one process, and what a rank does for each role."""

from __future__ import annotations

import copy
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_lit import hookimpl, random_states
from areal_lit.batching import pack
from areal_lit.contracts import Algorithm, Callback, Rank, Snapshot, Strategy, WorkerGroup
from areal_lit.files import WriteError
from areal_lit.plugins import fingerprint
from areal_lit.roles import Role, RoleGroup
from areal_lit.testing.strategy_case import PlainSGD
from areal_lit.testing.tiny import tiny_spec
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch
from areal_lit.types import ModelSpec
from areal_lit.worker import RoleWorker
from areal_lit_algorithms.grpo import GRPO
from areal_lit_single.strategy import Single

LOGPROB = frozenset({"logprob"})


class Pairs(Single):
    """A model of its own on every rank; each two ranks share a data shard, as tensor-parallel ones do."""

    needs_one_rank = False

    def setup(self, spec: ModelSpec, *, rank: Rank = Rank(), **settings: Any) -> None:  # noqa: B008 - frozen
        super().setup(spec, **settings)

    def data_shards(self, num_ranks: int) -> Sequence[int]:
        return [rank // 2 for rank in range(num_ranks)]


class Workers(WorkerGroup):
    """RoleWorkers in this process; keeps what each rank was given."""

    def __init__(self, num_ranks: int) -> None:
        self.name = "workers"
        self.num_ranks = num_ranks
        self.workers = [RoleWorker(Rank(rank=rank, num_ranks=num_ranks)) for rank in range(num_ranks)]
        self.given: dict[str, Sequence[Any]] = {}

    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        self.given[method] = per_rank or ()
        futures = []
        for rank, worker in enumerate(self.workers):
            own = [copy.copy(arg) if isinstance(arg, Strategy) else arg for arg in args]
            futures.append(done(getattr(worker, method), *([per_rank[rank]] if per_rank else []), *own))
        return futures

    def stop(self) -> None: ...


def done(call: Callable[..., Any], *args: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        value = call(*args)
        if isinstance(value, Future):
            return value
        future.set_result(value)
    except (ValueError, RuntimeError) as error:
        future.set_exception(error)
    return future


def started(
    directory: Path, *, strategy: Single | None = None, num_ranks: int = 1, name: str = "policy", head: Any = "lm",
    algorithm: Algorithm | None = None, callbacks: Sequence[Callback] = (), expected: Mapping[str, str] | None = None,
    workers: Workers | None = None,
) -> tuple[RoleGroup, Workers]:  # fmt: skip
    strategy, workers, algorithm = strategy or Single(), workers or Workers(num_ranks), algorithm or GRPO()
    role = Role(model=tiny_spec(directory), strategy=strategy, optimizer=PlainSGD(lr=0.5), num_ranks=num_ranks)
    group = RoleGroup(name, role, workers, watch=lambda: None, timeout_s=5.0)
    prints = fingerprint([strategy, algorithm]) if expected is None else expected
    group.wait(
        group.start(head=head, num_steps=None, algorithm=algorithm, callbacks=callbacks, fingerprint=prints), "setup"
    )
    return group, workers


def batch(algorithm: Algorithm | None = None) -> TokenBatch:
    """Weighed, with proximal log-probs of 0."""
    algorithm = algorithm or GRPO()
    groups = RaggedGroups().draw(np.random.default_rng(2), num_groups=4)
    packed = pack(groups, algorithm_columns=algorithm.columns)
    return algorithm.weigh(algorithm.prepare(packed.with_columns(proximal=torch.zeros(packed.num_tokens))))


def is_fill(microbatch: TokenBatch) -> bool:
    return not bool(microbatch["loss_mask"].any()) and not bool(microbatch["token_weight"].any())


def test_outputs_of_all_shards_come_back_in_the_batchs_order(tmp_path: Path) -> None:
    whole = batch()
    group, workers = started(tmp_path, strategy=Pairs(max_tokens_per_microbatch=18), num_ranks=4)
    ours = group.forward(whole, LOGPROB).logprob_T
    theirs = started(tmp_path)[0].forward(whole, LOGPROB).logprob_T
    assert ours is not None
    assert theirs is not None
    assert torch.unique(theirs[whole["loss_mask"]]).numel() > 20
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    of_rank = workers.given["forward"]
    assert of_rank[0] is of_rank[1]
    assert of_rank[2] is of_rank[3]
    assert [is_fill(m) for rank in (0, 2) for m in of_rank[rank]].count(True) == 1  # shards are not equally long


def test_loss_and_metrics_of_shards_are_those_of_the_whole(tmp_path: Path) -> None:
    whole = batch()
    group, _ = started(tmp_path, strategy=Pairs(max_tokens_per_microbatch=18), num_ranks=4)
    ours = {m.name: m.value for m in group.evaluate(whole)}
    theirs = {m.name: m.value for m in started(tmp_path)[0].evaluate(whole)}
    assert ours["train/loss"] != 0
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize(("algorithm", "has_entropy"), [(GRPO(), False), (GRPO(with_entropy=True), True)])
def test_objectives_get_entropy_when_the_algorithm_needs_it(
    tmp_path: Path, algorithm: Algorithm, has_entropy: bool
) -> None:
    group, _ = started(tmp_path, algorithm=algorithm)
    metrics = group.collect(group.optimizer_step(batch(algorithm)), "optimizer_step")
    assert ("train/entropy" in {m.name for m in metrics}) == has_entropy


def test_a_role_without_objective_is_not_trained(tmp_path: Path) -> None:
    policy, workers = started(tmp_path)
    reference, _ = started(tmp_path, name="reference", workers=workers)
    start = policy.forward(batch(), LOGPROB).logprob_T
    with pytest.raises(ValueError, match="no objective for role 'reference'"):
        reference.wait(reference.optimizer_step(batch()), "optimizer_step")
    policy.wait(policy.optimizer_step(batch()), "optimizer_step")
    assert start is not None
    moved, stayed = (group.forward(batch(), LOGPROB).logprob_T for group in (policy, reference))
    assert moved is not None
    assert stayed is not None
    assert torch.equal(stayed, start)
    assert not torch.equal(moved, start)


def test_a_value_role_gives_values(tmp_path: Path) -> None:
    critic, _ = started(tmp_path, name="critic", head="value")
    outputs = critic.forward(batch(), frozenset({"value"}))
    assert outputs.logprob_T is None
    assert outputs.value_T is not None
    assert outputs.final_value_S is not None
    assert outputs.final_value_S.shape == (batch().num_segments,)


def test_another_version_than_the_controllers_is_refused(tmp_path: Path) -> None:
    ours = fingerprint([GRPO()])
    with pytest.raises(RuntimeError, match=r"GRPO: .* here, areal-lit 0\.0 on the controller"):
        started(tmp_path, expected=dict.fromkeys(ours, "areal-lit 0.0"))


class Watcher(Callback):
    """Keeps the role of every optimizer step, and whether there were gradients."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    @hookimpl
    def before_optimizer_step(self, model: torch.nn.Module, role: str) -> None:
        self.seen.append((role, any(p.grad is not None for p in model.parameters())))


def test_callbacks_hear_of_optimizer_steps_with_the_role(tmp_path: Path) -> None:
    watcher = Watcher()
    group, _ = started(tmp_path, callbacks=[watcher])
    group.wait(group.optimizer_step(batch()), "optimizer_step")
    assert watcher.seen == [("policy", True)]


class Slow(Snapshot):
    """Writes when it is told to."""

    def __init__(self, go: threading.Event, error: OSError | None) -> None:
        self.go = go
        self.error = error

    def save(self, directory: Path) -> None:
        assert self.go.wait(30)
        if self.error:
            raise self.error
        (directory / "saved").touch()

    def export_hf(self, directory: Path) -> None:
        (directory / "exported").touch()


class Snapping(Single):
    """Has slow snapshots."""

    def __init__(self, error: OSError | None = None) -> None:
        super().__init__()
        self.go = threading.Event()
        self.error = error

    def save(self, directory: Path) -> None:
        if self.error:
            raise self.error
        super().save(directory)

    def snapshot(self) -> Snapshot:
        return Slow(self.go, self.error)

    def saved_bytes(self, *, has_export: bool) -> int:
        return (3 if has_export else 2) * 2**20


class Plain(Single):
    """Has no snapshots, as strategies without support for them."""

    def snapshot(self) -> None:
        return None


def saved(group: RoleGroup, directory: Path, *, in_background: bool) -> Future[Any]:
    (directory / "hf").mkdir(parents=True)
    (future,) = group.save(directory, export=directory / "hf", in_background=in_background, timeout_s=5.0)
    return future


def test_files_are_written_in_the_background_only_from_a_snapshot_and_when_asked_to(tmp_path: Path) -> None:
    group, _ = started(tmp_path, strategy=Plain())
    assert saved(group, tmp_path / "plain", in_background=True).done()
    assert (tmp_path / "plain" / "hf" / "model.safetensors").exists()
    group, _ = started(tmp_path, strategy=(slow := Snapping()))
    assert saved(group, tmp_path / "asked", in_background=False).done()
    future = saved(group, tmp_path / "background", in_background=True)
    group.wait(group.optimizer_step(batch()), "optimizer_step")
    assert not future.done()
    slow.go.set()
    future.result(timeout=30)
    names = {path.name for path in (tmp_path / "background").rglob("*") if path.is_file()}
    assert names == {"saved", "exported", "random-0.json"}


@pytest.mark.parametrize("in_background", [True, False])
def test_a_full_disk_is_named_with_what_the_rank_was_to_write(tmp_path: Path, in_background: bool) -> None:
    group, _ = started(tmp_path, strategy=(slow := Snapping(OSError(28, "No space left on device"))))
    slow.go.set()
    with pytest.raises(WriteError) as raised:
        saved(group, tmp_path / "full", in_background=in_background).result(timeout=30)
    says = r"No space left on device: '.*full' \(3\.0 MiB are needed, [\d.,]+ MiB were free\); free space there$"
    assert re.search(says, str(raised.value))


def test_each_rank_draws_on_after_loading(tmp_path: Path) -> None:
    group, _ = started(tmp_path)
    before = random_states.capture()
    saved(group, tmp_path / "at", in_background=False)
    drawn = random.random(), float(torch.rand(()))
    group.load(tmp_path / "at")
    assert (random.random(), float(torch.rand(()))) == drawn
    (tmp_path / "at" / "random-0.json").unlink()
    group.load(tmp_path / "at")
    random_states.restore(before)


def test_the_first_minibatch_tells_how_far_engine_and_trainer_differ(tmp_path: Path) -> None:
    algorithm = GRPO(decoupled=False, old="behaviour")
    groups = RaggedGroups().draw(np.random.default_rng(2), num_groups=4)
    packed = pack(groups, algorithm_columns=algorithm.columns)
    group, _ = started(tmp_path, strategy=Pairs(max_tokens_per_microbatch=18), num_ranks=4, algorithm=algorithm)
    current = group.forward(packed, LOGPROB).logprob_T
    assert current is not None
    step = int(packed["version"].max())
    drawn = packed["loss_mask"] & (packed["version"] == step)
    off = packed.with_columns(logprob=torch.where(drawn, current + 0.25, packed["logprob"]))
    weighed = algorithm.weigh(algorithm.prepare(off.with_scalars(step=float(step))))

    def metrics() -> dict[str, float]:
        futures = group.optimizer_step(weighed)
        return {m.name: m.value for m in group.collect(futures, "optimizer_step")}

    first, second = metrics(), metrics()
    assert first["train/logprob_mismatch"] == pytest.approx(0.25, rel=1e-4)
    assert first["train/logprob_mismatch_max"] == pytest.approx(0.25, rel=1e-4)
    assert "train/logprob_mismatch" not in second  # the weights have moved
    group.end_step()
    assert metrics()["train/logprob_mismatch"] != pytest.approx(0.25, rel=1e-4)
    weighed = weighed.with_scalars(step=float(step + 1))
    group.end_step()
    assert "train/logprob_mismatch" not in metrics()  # no token is of these weights
