"""Conformance suite for algorithms: ``check_algorithm(MyAlgorithm())``.

Each check fails with a sentence that names the broken rule. Batches are random and ragged, the model is a toy, the
batching is the product's own; nothing is started.

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import torch

from areal_lit.batching import atom_tokens, pack, select_atoms, split_minibatches
from areal_lit.contracts.algorithm import Algorithm
from areal_lit.testing.algorithm_case import COLUMNS_OF_NEED, AlgorithmCase, assert_same, garbled_columns
from areal_lit.testing.toy import NEWEST_VERSION, ExtraColumns, RaggedGroups
from areal_lit.token_batch import Loss, weighted_sum
from areal_lit.types import Group, merge_metrics


def check_algorithm(
    algorithm: Algorithm,
    *,
    pairs: bool = False,
    columns: ExtraColumns | None = None,
    raises_good: bool | None = None,
    rounds: int = 3,
    seed: int = 0,
) -> None:
    """Raise AssertionError naming the rule that this algorithm breaks.

    Args:
        pairs: its atoms are pairs of trajectories (DPO, reward models).
        columns: what ``encode`` puts into ``Trajectory.columns``, for offline algorithms.
        raises_good: whether a reward above its group's must raise a sample's log-prob; by default for
            online algorithms that train a policy.
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
        if not algorithm.offline:
            check_hostile_rewards(case)
    should_raise = not algorithm.offline and "policy" in algorithm.heads if raises_good is None else raises_good
    if should_raise:
        check_direction(AlgorithmCase(algorithm=algorithm, draw=draw, seed=seed))


def check_declarations(algorithm: Algorithm) -> None:
    """Roles, needs and columns agree with each other, and the instance travels."""
    roles, heads = set(algorithm.objectives()), set(algorithm.heads)
    assert roles == heads, (
        f"`heads` names the roles {sorted(heads)}, `objectives()` {sorted(roles)}; they must be the same"
    )
    unknown = algorithm.needs - {"proximal", "reference", "values", "entropy", "teacher", "topk"}
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
    metrics = merge_metrics(list(case.algorithm.step_metrics(case.algorithm.prepare(batch))))
    for name, metric in case.step(batch).metrics.items():
        role, _, rest = name.partition("/")
        metrics[f"train/{rest}" if role == "policy" else name] = metric
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
    """Samples may come in any order: groups are known by their id."""
    batch = case.packed(case.groups())
    order = torch.from_numpy(np.random.default_rng(case.seed).permutation(batch.num_atoms))
    rule = "the gradient depends on the order of samples: use the `group` column, never position or stride"
    assert_same(case.step(batch), case.step(select_atoms(batch, order)), rule)


def check_masked_values(case: AlgorithmCase) -> None:
    """No value on a token outside ``loss_mask`` changes anything."""
    batch = case.packed(_with_unscored(case.groups(), case.algorithm))
    whole = case.step(batch)
    rule = "a value where `loss_mask` is False changes the gradient"
    floats = ("logprob", "proximal", "reference", "teacher", "value", "final_value", "reward", "turn_reward")
    names = [name for name in floats if name in batch]
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


def check_excluded_samples(case: AlgorithmCase) -> None:
    """Samples without a reward or without loss tokens count nowhere: leaving them out gives the same gradient."""
    groups = _with_unscored(case.groups(), case.algorithm)
    batch = case.packed(groups)
    kept_A = batch.atom_sum((batch.loss_tokens_S > 0).long()) > 0
    if bool(kept_A.all()):
        return
    rule = "samples that are unscored or without loss tokens still vote in a mean, a baseline or a denominator"
    assert_same(case.step(batch), case.step(select_atoms(batch, kept_A.nonzero()[:, 0])), rule)


def check_hostile_rewards(case: AlgorithmCase) -> None:
    """Non-finite, missing, equal, lone and nearly equal rewards leave gradients finite and bounded."""
    rng = np.random.default_rng(case.seed)
    rewards: list[list[float | None]] = [
        [float("nan"), 1.0, 0.0],
        [float("inf"), float("-inf"), 2.0],
        [None, None],
        [0.1] * 7,
        [1.0],
        [*[0.95] * 7, 0.0],
        [1.0, 2.0, 3.0],
    ]
    groups = []
    for prompt_id, values in enumerate(rewards):
        group = case.draw.group(rng, prompt_id, len(values))
        members = zip(group.trajectories, values, strict=True)
        marked = [replace(t, reward=v, unscored="broken" if v is None else "") for t, v in members]
        groups.append(replace(group, trajectories=tuple(marked)))
    batch = case.packed(groups)
    result = case.step(batch)
    for role, gradient in result.gradients.items():
        finite = bool(torch.isfinite(gradient).all())
        assert finite, f"the gradient of role {role!r} is not finite for NaN, infinite, missing, equal or lone rewards"
        size = float(gradient.abs().max())
        assert size < 1e3, f"the gradient of role {role!r} reaches {size:.3g} for nearly equal rewards; bound the scale"
    nothing = case.packed(groups[2:3])
    for role, gradient in case.step(nothing).gradients.items():
        assert not bool(gradient.any()), f"a step without any scored sample has a gradient for role {role!r}"


def check_direction(case: AlgorithmCase) -> None:
    """On-policy, a sample better than the rest of its group gets likelier, a worse one less likely."""
    rng = np.random.default_rng(case.seed)
    groups = []
    for prompt_id in range(3):
        group = case.draw.group(rng, prompt_id, 6)
        marked = [replace(t, reward=1.0 if t.sample % 2 else -1.0, turn_rewards=()) for t in group.trajectories]
        groups.append(replace(group, trajectories=tuple(marked)))
    batch = pack(groups, algorithm_columns=case.algorithm.columns).with_scalars(step=NEWEST_VERSION)
    with torch.no_grad():
        outputs = case.model("policy")(batch)
    assert outputs.logprob_T is not None
    columns = {n: outputs.logprob_T.float() for need in case.algorithm.needs for n in COLUMNS_OF_NEED.get(need, ())}
    columns |= {n: torch.zeros(batch.size(batch.dims[n])) for n in ("value", "final_value") if n in columns}
    batch = batch.with_columns(logprob=outputs.logprob_T.float().where(batch["loss_mask"], 0.0), **columns)
    weighed = case.algorithm.weigh(case.algorithm.prepare(batch))
    leaf_T = outputs.logprob_T.clone().requires_grad_()
    loss: Loss = case.algorithm.objectives()["policy"](
        case.visible(replace(outputs, logprob_T=leaf_T), "policy"), weighed
    )
    (slope_T,) = torch.autograd.grad(weighted_sum(loss, weighed), leaf_T)
    slope_S, has_tokens_S = weighed.segment_sum(slope_T), weighed.loss_tokens_S > 0
    good, bad = has_tokens_S & (weighed["reward"] > 0), has_tokens_S & (weighed["reward"] < 0)
    assert bool((slope_S[good] < 0).all()), (
        "a positive advantage does not raise the log-prob: the loss has the wrong sign"
    )
    assert bool((slope_S[bad] > 0).all()), (
        "a negative advantage does not lower the log-prob: the loss has the wrong sign"
    )


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
