"""The golden cases as pairs of a chosen and a rejected side, and a whole step of an offline algorithm on one.

Shapes: T packed tokens, K tokens of paired rows, B samples, S tokens of the longest completion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from oracle_batches import packed, to_packed, to_padded
from ragged_cases import Case, Floats
from torch import Tensor

from areal_lit.batching import select_atoms
from areal_lit.contracts.algorithm import Algorithm
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineStep:
    """What an offline algorithm makes of a case.

    Args:
        gradient: of the loss in the current log-probs [B, S], or in the scores [B].
        values: unweighted, one per token or pair.
    """

    loss: float
    size: float
    gradient: Floats
    values: Tensor
    metrics: dict[str, float]


def paired(algorithm: Algorithm, case: Case) -> TokenBatch:
    """``case.pairs`` as atoms."""
    rows = torch.from_numpy(case.pairs.reshape(-1))
    batch = select_atoms(packed(case.index), rows)
    place_S = torch.arange(len(rows))
    columns = {**batch.columns, "atom": place_S // 2, "sign": 1.0 - 2.0 * (place_S % 2)}
    return replace(batch, columns=columns, dims={**batch.dims, **algorithm.columns}, num_atoms=len(rows) // 2)


def take_pair_step(algorithm: Algorithm, case: Case) -> OfflineStep:
    """On the case's pairs, by log-probs or, with a head for a score, by ``final_value``; in float32."""
    batch = algorithm.weigh(algorithm.prepare(paired(algorithm, case)))
    rows = torch.from_numpy(case.pairs.reshape(-1))
    if algorithm.heads["policy"] == "score":
        leaf = torch.from_numpy(case.final_value).float().requires_grad_()
        outputs = TokenOutputs(final_value_S=leaf[rows])
    else:
        leaf = to_packed(case, case.current).float().requires_grad_()
        outputs = TokenOutputs(logprob_T=leaf[torch.isin(packed(case.index)["segment"], rows)])
    return _step(algorithm, batch, outputs, leaf, case)


def take_offline_step(algorithm: Algorithm, case: Case) -> OfflineStep:
    """On all samples of the case as sequences to imitate; in float32."""
    leaf_T = to_packed(case, case.current).float().requires_grad_()
    batch = algorithm.weigh(algorithm.prepare(packed(case.index)))
    return _step(algorithm, batch, TokenOutputs(logprob_T=leaf_T), leaf_T, case)


def _step(algorithm: Algorithm, batch: TokenBatch, outputs: TokenOutputs, leaf: Tensor, case: Case) -> OfflineStep:
    loss = algorithm.objectives()["policy"](outputs, batch)
    total = weighted_sum(loss, batch)
    (gradient,) = torch.autograd.grad(total, leaf)
    return OfflineStep(
        loss=total.item(),
        size=float((batch[loss.weight_column] * loss.values.detach()).abs().sum()),
        gradient=gradient.double().numpy() if len(leaf) == len(case.group) else to_padded(case, gradient),
        values=loss.values.detach(),
        metrics={metric.name: metric.value for metric in loss.metrics},
    )
