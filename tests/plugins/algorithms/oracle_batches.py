"""The golden cases as token batches, a whole step of an algorithm on one, and how near to a package it must be.

Shapes: T packed tokens, B samples, S tokens of the longest completion; arrays [B, S] are as in ``ragged_cases``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from golden_file import Golden
from ragged_cases import Case, Floats, cases
from torch import Tensor

from areal_lit.batching import pack
from areal_lit.contracts.algorithm import Algorithm
from areal_lit.testing.algorithm_case import COLUMNS_OF_NEED
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_algorithms.pieces.rejection import Rejection, off_policy_weight

TOLERANCE = 1e-6
"""Of a difference, relative to the size of what is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an algorithm makes of a case.

    Args:
        advantage: [B, S].
        loss: the weighted sum over the mini-batch, which is the whole case.
        size: the same sum of absolute values.
        gradient: of the loss in the current log-probs (for the critic, values), [B, S].
        metrics: of the objective, by name.
    """

    advantage: Floats
    loss: float
    size: float
    gradient: Floats
    metrics: dict[str, float]


@cache
def packed(index: int, *, has_turn_rewards: bool = True) -> TokenBatch:
    """Case ``index``, one prompt token before each completion, with what models say about it; all in float32."""
    case = cases()[index] if has_turn_rewards else cases()[index].without_turn_rewards
    batch = pack([_group(case, row) for row in range(len(case.group))]).with_scalars(step=case.step)
    said = {name: to_packed(case, getattr(case, name)).float() for name in ("proximal", "reference", "value")}
    return batch.with_columns(**said, final_value=torch.from_numpy(case.final_value).float())


def batch_for(algorithm: Algorithm, case: Case) -> TokenBatch:
    """The case with room for the algorithm's own columns, and of what models say only what it needs."""
    batch = packed(case.index, has_turn_rewards=case.has_turn_rewards)
    unasked = {name for need, names in COLUMNS_OF_NEED.items() if need not in algorithm.needs for name in names}
    columns = {name: column for name, column in batch.columns.items() if name not in unasked}
    return replace(batch, columns=columns, dims={**batch.dims, **algorithm.columns})


def take_step(algorithm: Algorithm, case: Case, role: str = "policy") -> Step:
    """Prepare, weigh, the role's objective, the weighted sum and its gradient, in float32."""
    weighed = algorithm.weigh(algorithm.prepare(batch_for(algorithm, case)))
    leaf_T = to_packed(case, case.new_value if role == "critic" else case.current).float().requires_grad_()
    outputs = TokenOutputs(value_T=leaf_T) if role == "critic" else TokenOutputs(logprob_T=leaf_T)
    if "entropy" in algorithm.needs:
        outputs = replace(outputs, entropy_T=leaf_T.square() / 2)  # as algorithm_reference.stand_in_entropy
    loss = algorithm.objectives()[role](outputs, weighed)
    total = weighted_sum(loss, weighed)
    (gradient_T,) = torch.autograd.grad(total, leaf_T)
    return Step(
        advantage=to_padded(case, weighed["advantage"]),
        loss=total.item(),
        size=float((weighed["token_weight"] * loss.values.detach()).abs().sum()),
        gradient=to_padded(case, gradient_T),
        metrics={metric.name: metric.value for metric in loss.metrics},
    )


def to_packed(case: Case, x: Floats) -> Tensor:
    """[B, S] as [T], 0 on prompts."""
    rows = [np.concatenate([[0.0], row[:n]]) for row, n in zip(x, case.length, strict=True)]
    return torch.from_numpy(np.concatenate(rows))


def to_padded(case: Case, x_T: Tensor) -> Floats:
    """[T] without prompts as [B, S], 0 on padding."""
    result = np.zeros(case.mask.shape)
    for row, values in enumerate(x_T.detach().double().split((case.length + 1).tolist())):
        result[row, : case.length[row]] = values[1:]
    return result


def assert_step(step: Step, case: Case, golden: Golden, name: str, *, has_advantage: bool = True) -> None:
    """The step is the package's: advantages, loss and gradient."""
    if has_advantage:
        assert_tokens(step.advantage, case, golden, f"{name}/advantage")
    assert_number(step.loss, golden.outputs[f"{name}/loss"][case.index], step.size, f"{name}/loss of case {case.index}")
    assert_tokens(step.gradient, case, golden, f"{name}/gradient")


def assert_tokens(ours: Floats, case: Case, golden: Golden, output: str) -> None:
    """A result per token is the package's on every direction."""
    theirs = golden.outputs[output][case.index]
    size = float(np.linalg.norm(ours))
    for number, (mine, other) in enumerate(zip(case.projected(ours), theirs, strict=True)):
        assert_number(mine, other, size, f"{output} of case {case.index}, direction {number}")


def assert_number(ours: float, theirs: float, size: float, what: str) -> None:
    assert abs(ours - theirs) <= TOLERANCE * max(size, 1e-3), f"{what}: {ours:.9g}, the package {theirs:.9g}"


def assert_values(ours: Floats, expected: Floats | list[float]) -> None:
    """Each number is the expected one, relative to its size or 1."""
    assert ours == pytest.approx(np.array(expected), rel=TOLERANCE, abs=TOLERANCE)


def weight_of(case: Case, rejection: Rejection, *, is_corrected: bool) -> Floats:
    """The off-policy weight of each token, [B, S]; not corrected, 1 where it is kept."""
    batch = packed(case.index)
    weight_T, _ = off_policy_weight(
        batch["proximal"], batch["logprob"], batch, is_corrected=is_corrected, rejection=rejection
    )
    return to_padded(case, weight_T) * case.mask


def _group(case: Case, row: int) -> Group:
    n = int(case.length[row])
    prompt = Prompt(prompt_id=int(case.group[row]), source="a", row=0, epoch=0, example=Example(prompt="x"))

    def with_prompt(x: np.ndarray[Any, Any], before: Any) -> np.ndarray[Any, Any]:
        return np.concatenate([[before], x[row, :n]]).astype(x.dtype)

    trajectory = Trajectory(
        token_ids=np.arange(n + 1),
        loss_mask=with_prompt(case.mask, False),
        logprobs=with_prompt(case.behaviour.astype(np.float32), 0),
        versions=with_prompt(case.version, -1),
        prompt=prompt,
        reward=float(case.reward[row]),
        stop_reason="length" if case.truncated[row] else "stop",
        sample=row,
        turn_ids=with_prompt(case.turn, -1),
        turn_rewards=_turn_rewards(case, row),
    )
    return Group(prompt=prompt, trajectories=(trajectory,))


def _turn_rewards(case: Case, row: int) -> tuple[float, ...]:
    if not case.has_turn_rewards:
        return ()
    return tuple(case.turn_reward[row][case.turn_reward[row] != 0].tolist())
