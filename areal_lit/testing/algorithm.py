"""Conformance suite for algorithms: ``check_algorithm(MyAlgorithm())``.

Each check fails with a sentence that names the broken rule. Batches are random and ragged, the model is a toy, the
batching is the product's own; nothing is started, unless processes are given (``algorithm_ranks``).

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import torch

from areal_lit.contracts.algorithm import Algorithm, Need
from areal_lit.testing.algorithm_case import AlgorithmCase, assert_same
from areal_lit.testing.algorithm_invariances import (
    check_excluded_samples,
    check_masked_values,
    check_order,
    check_splits,
    check_untrained_tokens,
)
from areal_lit.testing.algorithm_rewards import check_direction, check_hostile_rewards, check_unused_rewards
from areal_lit.testing.toy import ExtraColumns, RaggedGroups
from areal_lit.types import Group

if TYPE_CHECKING:
    from areal_lit.testing.algorithm_ranks import Ranks


def check_algorithm(
    algorithm: Algorithm,
    *,
    pairs: bool = False,
    columns: ExtraColumns | None = None,
    raises_good: bool | None = None,
    ranks: Ranks | None = None,
    rounds: int = 3,
    seed: int = 0,
) -> None:
    """Raise AssertionError naming the rule that this algorithm breaks.

    Args:
        pairs: its atoms are pairs of trajectories (DPO, reward models).
        columns: what ``encode`` puts into ``Trajectory.columns``, for offline algorithms.
        raises_good: whether a reward above its group's must raise a sample's log-prob; by default for
            algorithms that use rewards and train a policy.
        ranks: from ``started_ranks``: processes on which an optimizer step must be what it is on one.
        rounds: random batches per check.
    """
    draw = RaggedGroups(pairs=pairs, offline=algorithm.offline, columns=columns)
    check_declarations(algorithm)
    for number in range(rounds):
        case = AlgorithmCase(algorithm=algorithm, draw=draw, seed=seed + number)
        check_purity(case)
        check_end_of_step(case)
        check_weights(case)
        check_splits(case)
        check_order(case)
        check_excluded_samples(case)
        check_masked_values(case)
        check_untrained_tokens(case)
        if not algorithm.offline:
            check_hostile_rewards(case)
        if not algorithm.uses_rewards:
            check_unused_rewards(case)
    should_raise = algorithm.uses_rewards and "policy" in algorithm.heads if raises_good is None else raises_good
    if should_raise:
        check_direction(AlgorithmCase(algorithm=algorithm, draw=draw, seed=seed))
    if ranks is not None:
        from areal_lit.testing.algorithm_ranks import check_ranks

        check_ranks(AlgorithmCase(algorithm=algorithm, draw=draw, seed=seed), ranks)


def check_declarations(algorithm: Algorithm) -> None:
    """Roles, needs and columns agree with each other, and the instance travels."""
    roles, heads = set(algorithm.objectives()), set(algorithm.heads)
    assert roles == heads, (
        f"`heads` names the roles {sorted(heads)}, `objectives()` {sorted(roles)}; they must be the same"
    )
    unknown = algorithm.needs - set(get_args(Need))
    assert not unknown, f"`needs` holds {sorted(unknown)}, which the core does not know"
    twin = pickle.loads(pickle.dumps(algorithm))
    assert dict(twin.columns) == dict(algorithm.columns), "`columns` must survive pickling: instances travel to ranks"


def check_purity(case: AlgorithmCase) -> None:
    """Same in, same out, nothing changed in place, nothing undeclared."""
    batch = case.packed(case.groups())
    before = {name: column.clone() for name, column in batch.columns.items()}
    prepared = case.algorithm.prepare(batch)
    weighed = case.algorithm.weigh(prepared)
    for name, column in before.items():
        assert torch.equal(column, batch[name]), (
            f"`prepare` or `weigh` changed column {name!r} in place; return a new batch"
        )
    for name, column in weighed.columns.items():
        assert name in batch.dims, f"column {name!r} is not declared; add it to `columns` with its dimension"
        rows = weighed.size(batch.dims[name])
        assert column.shape[:1] == (rows,), f"column {name!r} is declared {batch.dims[name]} but has {len(column)} rows"
    again = case.algorithm.weigh(case.algorithm.prepare(batch))
    for name, column in weighed.columns.items():
        same = torch.allclose(column.double(), again[name].double(), rtol=0, atol=0, equal_nan=True)
        assert same, f"`prepare` and `weigh` gave column {name!r} two values for one batch; no random numbers, no state"
    first, second = (case.train(weighed, num_shards=1, max_tokens=1 << 30) for _ in range(2))
    assert_same(first, second, "objectives gave two results for one micro-batch; no random numbers, no state")
    case.algorithm.step_metrics(prepared)


def check_end_of_step(case: AlgorithmCase) -> None:
    """``end_step`` takes any step's metrics, and what it moves is in the state, so that a resumed run has it."""
    batch = case.packed(case.groups())
    moved, resumed = (pickle.loads(pickle.dumps(case.algorithm)) for _ in range(2))
    measured = case.step(batch).metrics
    metrics = {name.replace("policy/", "train/"): metric for name, metric in measured.items()}
    for step in (metrics, {}, metrics):
        moved.end_step(step)
    resumed.load_state_dict(json.loads(json.dumps(dict(moved.state_dict()))))
    before, after = (dict(algorithm.prepare(batch).scalars) for algorithm in (moved, resumed))
    assert before == after, (
        f"`end_step` moved the scalars of a batch to {before}, after a resume they are {after}; "
        "put them into `state_dict`"
    )


def check_weights(case: AlgorithmCase) -> None:
    """Weights exist, are finite, 0 where nothing is trained, and named so that fill can silence them."""
    groups = case.groups()
    _check_weights(case, groups)
    if not case.algorithm.offline:
        nothing = [replace(t, reward=None, unscored="broken") for t in groups[2].trajectories]
        _check_weights(case, [replace(groups[2], trajectories=tuple(nothing))])


def _check_weights(case: AlgorithmCase, groups: list[Group]) -> None:
    weighed = case.algorithm.weigh(case.algorithm.prepare(case.packed(groups)))
    has_tokens_S = weighed.loss_tokens_S > 0
    trained = {
        "token": weighed["loss_mask"],
        "segment": has_tokens_S,
        "atom": weighed.atom_sum(has_tokens_S.long()) > 0,
    }
    for role, objective in case.algorithm.objectives().items():
        loss = objective(case.visible(case.model(role)(weighed), role), weighed)
        name = loss.weight_column
        assert name in weighed, f"the loss of role {role!r} is per {loss.per}, but `weigh` did not fill {name!r}"
        weight = weighed[name]
        assert loss.values.shape == weight.shape, (
            f"the loss of role {role!r} has shape {tuple(loss.values.shape)}, its weight {name!r} {tuple(weight.shape)}"
        )
        assert bool(torch.isfinite(weight).all()), f"{name!r} is not finite everywhere; guard the denominator"
        leak = f"{name!r} is not 0 where `loss_mask` is False; masked {loss.per}s must not be trained (mask leak)"
        assert not bool(weight[~trained[loss.per]].any()), leak
