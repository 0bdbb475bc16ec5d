"""What must not change the gradient of an algorithm: splits, order, and whatever is not trained.

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from areal_lit.batching import atom_tokens, select_atoms, split_minibatches
from areal_lit.contracts.algorithm import Algorithm
from areal_lit.testing.algorithm_case import AlgorithmCase, Result, assert_same, garbled_columns
from areal_lit.testing.toy import VOCABULARY
from areal_lit.types import Group, Trajectory

Item = TypeVar("Item")


def check_splits(case: AlgorithmCase) -> None:
    """The gradient and the metrics of a step do not depend on micro-batches or shards."""
    batch = case.packed(case.groups())
    tokens, longest = batch.num_tokens, int(atom_tokens(batch).max())
    prepared = case.algorithm.prepare(batch)
    for minibatch in split_minibatches(prepared, 2, seed=case.seed):
        weighed = case.algorithm.weigh(minibatch)
        whole = case.train(weighed, num_shards=1, max_tokens=1 << 30)
        for parts in (2, 7):
            split = case.train(weighed, num_shards=1, max_tokens=max(longest, tokens // parts))
            rule = f"the gradient depends on micro-batches (1 or {parts})"
            assert_same(whole, split, f"{rule}: use no mean over a micro-batch in objectives, put it into `weigh`")
        for shards in (2, weighed.num_atoms + 1):
            split = case.train(weighed, num_shards=shards, max_tokens=max(longest, tokens // 5))
            rule = f"the gradient depends on the number of data shards (1 or {shards})"
            assert_same(whole, split, f"{rule}: objectives may look at nothing beyond their segments and atoms")


def check_order(case: AlgorithmCase) -> None:
    """Samples and groups may come in any order: what belongs together is known by columns."""
    groups = case.groups()
    batch, rng = case.packed(groups), np.random.default_rng(case.seed)
    mixed = select_atoms(batch, torch.from_numpy(rng.permutation(batch.num_atoms)))
    rule = "the gradient depends on the order of samples: use the `group` column, never position or stride"
    assert_same(case.step(batch), case.step(mixed), rule)
    turned = case.packed([replace(g, trajectories=_permuted(rng, g.trajectories)) for g in _permuted(rng, groups)])
    rule = "the gradient depends on the order of groups, or of samples within a group or an atom: no column knows it"
    assert_same(case.step(batch), case.step(turned), rule)


def check_masked_values(case: AlgorithmCase) -> None:
    """No value on a token outside ``loss_mask`` changes anything."""
    batch = case.packed(_with_unscored(case.groups(), case.algorithm))
    whole = case.step(batch)
    rule = "a value where `loss_mask` is False changes the gradient"
    of_models = ("logprob", "proximal", "reference", "teacher", "topk_logprob", "value", "final_value")
    of_rollouts = ("reward", "turn_reward", "turn_scored", "turn", "version")
    names = [name for name in (*of_models, *of_rollouts) if name in batch]
    for name in names:
        changed = case.step(garbled_columns(batch, [name]))
        assert_same(
            whole, changed, f"{rule}: column {name!r}; replace masked entries (`where`) before computing with them"
        )
    own = [name for name in case.algorithm.columns if not name.endswith("_weight")]
    changed = case.step(batch, change=lambda weighed: garbled_columns(weighed, own))
    assert_same(whole, changed, f"{rule}: one of the algorithm's columns {own}; mask before exp, products and sums")
    changed = case.step(batch, garble=True)
    assert_same(
        whole, changed, f"{rule}: the model's outputs; replace masked entries (`where`) before computing with them"
    )


def check_untrained_tokens(case: AlgorithmCase) -> None:
    """Tokens outside ``loss_mask`` count nowhere, however many there are; of roles that model language.

    A scalar head reads the state after the last token, which more tokens change.
    """
    groups, rng = case.groups(), np.random.default_rng(case.seed)
    longer = [replace(g, trajectories=tuple(_longer(rng, t) for t in g.trajectories)) for g in groups]
    batch, long = case.packed(groups), case.packed(longer)
    if "final_value" in batch:
        long = long.with_columns(final_value=batch["final_value"])
    rule = (
        "more tokens where `loss_mask` is False change the gradient: count loss tokens (`loss_tokens_S`, "
        "`segment_mean`), never `length` or all tokens"
    )
    assert_same(_of_language(case, case.step(batch)), _of_language(case, case.step(long)), rule)


def check_excluded_samples(case: AlgorithmCase) -> None:
    """Samples without a reward or without loss tokens count nowhere: leaving them out gives the same gradient."""
    groups = _with_unscored(case.groups(), case.algorithm)
    batch = case.packed(groups)
    kept_A = batch.atom_sum((batch.loss_tokens_S > 0).long()) > 0
    if bool(kept_A.all()):
        return
    rule = "samples that are unscored or without loss tokens still vote in a mean, a baseline or a denominator"
    assert_same(case.step(batch), case.step(select_atoms(batch, kept_A.nonzero()[:, 0])), rule)


def _with_unscored(groups: list[Group], algorithm: Algorithm) -> list[Group]:
    """The groups with one scored member of each larger group made unscored (online algorithms only)."""
    if algorithm.offline:
        return groups
    marked = []
    for group in groups:
        first, *rest = group.trajectories
        if len(rest) > 1:
            first = replace(first, reward=None, unscored="broken")
        marked.append(replace(group, trajectories=(first, *rest)))
    return marked


def _permuted(rng: np.random.Generator, items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(items[index] for index in rng.permutation(len(items)))


def _longer(rng: np.random.Generator, trajectory: Trajectory) -> Trajectory:
    """The trajectory with up to five more tokens at its end, as a tool would add them."""
    n, num_added = len(trajectory.token_ids), int(rng.integers(0, 6))
    assert trajectory.turn_ids is not None

    def extended(x: Any, fill: Any) -> Any:
        return np.concatenate([x, np.full((num_added, *x.shape[1:]), fill, dtype=x.dtype)])

    return replace(
        trajectory,
        token_ids=np.concatenate([trajectory.token_ids, rng.integers(0, VOCABULARY, num_added)]),
        loss_mask=extended(trajectory.loss_mask, False),
        logprobs=extended(trajectory.logprobs, 0.0),
        versions=extended(trajectory.versions, -1),
        turn_ids=extended(trajectory.turn_ids, -1),
        columns={
            name: extended(np.asarray(x), 0) if np.shape(x)[:1] == (n,) else x for name, x in trajectory.columns.items()
        },
    )


def _of_language(case: AlgorithmCase, result: Result) -> Result:
    roles = {role for role, head in case.algorithm.heads.items() if head == "lm"}
    return Result(
        gradients={role: gradient for role, gradient in result.gradients.items() if role in roles},
        metrics={name: metric for name, metric in result.metrics.items() if name.partition("/")[0] in roles},
    )
