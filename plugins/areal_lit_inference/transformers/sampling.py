"""Drawing tokens: temperature, top-k, top-p, and noise that belongs to a request and not to its batch.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_lit.types import Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: a bijection of 64-bit integers whose output looks random."""
    x_N = (x_N ^ (x_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_N = (x_N ^ (x_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_N ^ (x_N >> np.uint64(31))


def seed_state(seed: int) -> np.uint64:
    """The noise stream of a request; any integer is a seed, taken modulo 2**64."""
    return np.uint64(mix(np.asarray([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))[0])


def uniform(state_N: NDArray[np.uint64], position_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) per row, a function of the request's seed and the token's position alone.

    So a request draws the same noise whichever others share its batch, and goes on with fresh noise when it is
    resumed. 52 bits: the largest value times any positive total stays below that total.
    """
    bits_N = mix(state_N + position_N.astype(np.uint64) * _GOLDEN)
    return (bits_N >> np.uint64(12)).astype(np.float64) * 2.0**-52


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The sampling options of N rows, gathered once and reused until the rows change.

    Args:
        temperature_N1: 1 for greedy rows; None if all are 1.
        greedy_N: bool; None if no row is greedy.
        truncated_M: indices of the rows with top-k or top-p; None if there are none.
        top_k_M1, top_p_M1: their options.
    """

    temperature_N1: Tensor | None
    greedy_N: Tensor | None
    truncated_M: Tensor | None
    top_k_M1: Tensor | None
    top_p_M1: Tensor | None

    @classmethod
    def gather(cls, options: Sequence[Sampling], vocab_size: int, device: torch.device) -> SamplingRows:
        """The tensors for these rows, on ``device``."""
        temperatures = [o.temperature or 1.0 for o in options]
        greedy = [o.temperature == 0 for o in options]
        rows = [i for i, o in enumerate(options) if (o.top_k or o.top_p < 1) and not greedy[i]]
        hot = any(t != 1.0 for t in temperatures)
        top_k = [[min(options[i].top_k or vocab_size, vocab_size)] for i in rows]  # else beyond any integer of torch
        return cls(
            temperature_N1=torch.tensor(temperatures, device=device)[:, None] if hot else None,
            greedy_N=torch.tensor(greedy, device=device) if any(greedy) else None,
            truncated_M=torch.tensor(rows, device=device) if rows else None,
            top_k_M1=torch.tensor(top_k, device=device) if rows else None,
            top_p_M1=torch.tensor([[options[i].top_p] for i in rows], device=device) if rows else None,
        )


def draw(logits_NV: Tensor, rows: SamplingRows, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """(token_N, logprob_N): a token per row by inverse transform, and its log-prob in float32.

    Log-probs are those of the whole distribution after temperature and before truncation; a greedy row's are at
    temperature 1, as its own distribution is degenerate. A row of logits that are no numbers has the log-prob NaN.
    """
    logits_NV = logits_NV.float()
    if rows.temperature_N1 is not None:
        logits_NV = logits_NV / rows.temperature_N1
    logprob_NV = torch.log_softmax(logits_NV, -1)
    weight_NV = logprob_NV.exp()
    if rows.truncated_M is not None and rows.top_k_M1 is not None and rows.top_p_M1 is not None:
        kept_MV = truncate(weight_NV[rows.truncated_M], rows.top_k_M1, rows.top_p_M1)
        weight_NV = weight_NV.index_copy(0, rows.truncated_M, kept_MV)
    cumulative_NV = weight_NV.cumsum(-1, dtype=torch.float64)
    target_N1 = uniform_N[:, None] * cumulative_NV[:, -1:]
    token_N = torch.searchsorted(cumulative_NV, target_N1, right=True)[:, 0]
    token_N = token_N.clamp(max=logits_NV.shape[1] - 1)  # NaN is found nowhere
    if rows.greedy_N is not None:
        token_N = torch.where(rows.greedy_N, logits_NV.argmax(-1), token_N)
    return token_N, logprob_NV.gather(1, token_N[:, None])[:, 0]


def truncate(weight_MV: Tensor, top_k_M1: Tensor, top_p_M1: Tensor) -> Tensor:
    """The weights with all but the top-k, and of those all but the smallest set of mass top-p, set to 0.

    The likeliest token always stays. Ties are broken by token id, so exactly k remain.
    """
    sorted_MV, order_MV = weight_MV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(weight_MV.shape[1], device=weight_MV.device)
    sorted_MV = sorted_MV.where(rank_V < top_k_M1, sorted_MV.new_zeros(()))
    before_MV = sorted_MV.cumsum(-1) - sorted_MV
    keep_MV = (before_MV < top_p_M1 * sorted_MV.sum(-1, keepdim=True)) | (rank_V == 0)
    return torch.zeros_like(weight_MV).scatter(1, order_MV, sorted_MV.where(keep_MV, sorted_MV.new_zeros(())))
