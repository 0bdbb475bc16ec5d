"""RoleGroup: results of ranks as results of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from areal_lit.contracts import WorkerGroup
from areal_lit.roles import Role, RoleGroup
from areal_lit.types import Metric, ModelSpec, merge_metrics
from areal_lit_single.strategy import Single


class Pairs(Single):
    """Two ranks for each data shard."""

    needs_one_rank = False

    def data_shards(self, num_ranks: int) -> Sequence[int]:
        return [rank // 2 for rank in range(num_ranks)]


class Answers(WorkerGroup):
    """Ranks that give prepared answers."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self.name = "policy"
        self.num_ranks = len(answers)
        self.answers = answers

    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        futures: list[Future[Any]] = []
        for answer in self.answers:
            future: Future[Any] = Future()
            if isinstance(answer, Exception):
                future.set_exception(answer)
            elif answer is not None:
                future.set_result(answer)
            futures.append(future)
        return futures

    def stop(self) -> None: ...


def role_group(answers: Sequence[Any], *, name: str = "policy", watch: Callable[[], None] = lambda: None) -> RoleGroup:
    role = Role(model=ModelSpec(path="x"), strategy=Pairs(), num_ranks=len(answers))
    return RoleGroup(name, role, Answers(answers), watch=watch, timeout_s=5.0)


def collected(answers: Sequence[Any], *, name: str = "policy") -> dict[str, float]:
    futures = Answers(answers).call("optimizer_step", timeout_s=5.0)
    return {m.name: m.value for m in role_group(answers, name=name).collect(futures, "optimizer_step")}


def of_a_rank(loss: float, clipped: float, count: float, was_skipped: bool) -> list[Metric]:
    return [
        Metric(name="loss", sum=loss, reduction="sum"),
        Metric(name="clipped", sum=clipped, count=count),
        Metric(name="grad_norm", sum=2.0, count=float(not was_skipped)),
        Metric(name="lr", sum=0.1, reduction="max"),
        Metric(name="skipped_steps", sum=float(was_skipped), reduction="sum"),
    ]


def test_shards_add_up_and_what_is_of_the_step_counts_once() -> None:
    answers = [of_a_rank(1.0, 3.0, 4.0, True)] * 2 + [of_a_rank(0.5, 1.0, 4.0, True)] * 2
    values = collected(answers)
    assert values["train/loss"] == 1.5
    assert values["train/clipped"] == 0.5
    assert values["train/skipped_steps"] == 1.0
    assert values["train/lr"] == 0.1
    critic = collected([of_a_rank(1.0, 1.0, 1.0, False)], name="critic")
    assert (critic["critic/skipped_steps"], critic["critic/grad_norm"]) == (0.0, 2.0)


def test_the_loss_of_a_step_is_the_mean_over_its_minibatches() -> None:
    """That of a mini-batch is the sum over its shards; a step of four is not four times as bad as a step of one."""
    answers = [of_a_rank(0.25, 0.0, 1.0, True)] * 2 + [of_a_rank(0.5, 0.0, 1.0, True)] * 2
    group = role_group(answers)
    futures = Answers(answers).call("optimizer_step", timeout_s=5.0)
    minibatches = [group.collect(futures, "optimizer_step") for _ in range(4)]
    step = merge_metrics([metric for metrics in minibatches for metric in metrics])
    assert step["train/loss"].value == 0.75


def test_the_first_failure_of_any_rank_is_raised() -> None:
    with pytest.raises(RuntimeError, match="rank 1 broke"):
        role_group([None, RuntimeError("rank 1 broke")]).end_step()


def test_a_wait_ends_when_the_run_failed_elsewhere() -> None:
    def watch() -> None:
        raise ConnectionError("engine-0 died")

    with pytest.raises(ConnectionError, match="engine-0 died"):
        role_group([None, None], watch=watch).end_step()


def test_a_skipped_step_is_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    collected([of_a_rank(1.0, 0.0, 1, False)] * 2)
    assert not caplog.messages
    for _ in range(2):
        collected([of_a_rank(1.0, 0.0, 1, True)] * 2)
    assert caplog.messages == ["policy: an optimizer step was skipped, its gradients were not finite"] * 2
