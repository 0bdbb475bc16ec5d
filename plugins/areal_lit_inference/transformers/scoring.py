"""Log-probs of given tokens, and the likeliest in their place, for many sequences in one forward pass.

Shapes: n tokens of one sequence, T tokens of all, K likeliest tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from areal_lit.types import LOWEST_TEMPERATURE, FloatArray, IntArray
from areal_lit_inference.transformers.model import ServedModel
from areal_lit_inference.transformers.slots import Prefill, pack

CHUNK_TOKENS = 512
"""Rows of logits that exist at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A sequence to be scored.

    Args:
        k: likeliest tokens wanted in the place of each token.
    """

    token_ids: IntArray
    temperature: float = 1.0
    k: int = 0

    def refusal(self, served: ServedModel) -> str:
        """Why it cannot be scored; empty if it can."""
        n = len(self.token_ids)
        if self.temperature < LOWEST_TEMPERATURE:
            return f"temperature must be >= {LOWEST_TEMPERATURE:g}, got {self.temperature:g}"
        if not 1 <= n <= served.max_length:
            return f"a sequence must have 1 to {served.max_length} tokens (max_position_embeddings), got {n}"
        if not 0 <= self.k <= served.vocab_size:
            return f"k must be in [0, {served.vocab_size}], the vocabulary, got {self.k}"
        return served.range_problem(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Of one sequence; the first token, which nothing precedes, has 0 everywhere.

    Args:
        logprobs: of each token given those before it, [n].
        topk_token_ids, topk_logprobs: the likeliest in its place, likeliest first, [n, k].
    """

    logprobs: FloatArray
    topk_token_ids: IntArray
    topk_logprobs: FloatArray


def packs(asked: Sequence[Asked], max_tokens: int) -> Iterator[list[int]]:
    """Indices of sequences to score together, of similar lengths: at most ``max_tokens``, or a single one."""
    together: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(asked)), key=lambda i: len(asked[i].token_ids)):
        length = len(asked[index].token_ids)
        if together and num_tokens + length > max_tokens:
            yield together
            together, num_tokens = [], 0
        together.append(index)
        num_tokens += length
    if together:
        yield together


@torch.inference_mode()
def score(served: ServedModel, asked: Sequence[Asked]) -> list[Scores]:
    """The scores of sequences in one pack, none of them refused."""
    device, lengths = served.device, [len(a.token_ids) for a in asked]
    token_T = torch.from_numpy(np.concatenate([a.token_ids for a in asked])).to(device)
    position_T = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).to(device)
    plan = Prefill(None, pack(lengths, [[]] * len(asked), device))
    hidden_TD = served.hidden(token_T[None], position_T[None], plan)[0]
    temperature_T = torch.tensor([a.temperature for a in asked], device=device).repeat_interleave(
        torch.tensor(lengths, device=device)
    )
    k = max(a.k for a in asked)
    found = [
        _of_next(served.project(hidden_T).float() / heat_T[:, None], next_T, k)
        for hidden_T, heat_T, next_T in zip(
            hidden_TD.split(CHUNK_TOKENS), temperature_T.split(CHUNK_TOKENS), token_T.roll(-1).split(CHUNK_TOKENS),
            strict=True,
        )
    ]  # fmt: skip
    is_first_T = position_T == 0
    columns = []
    for parts in zip(*found, strict=True):
        column = torch.cat(parts).roll(1, 0)  # what a place says of the next token stands at that token
        column[is_first_T] = 0
        columns.append(np.split(column.cpu().numpy(), np.cumsum(lengths)[:-1]))
    return [
        Scores(logprobs=logprobs, topk_token_ids=token_ids[:, : a.k], topk_logprobs=values[:, : a.k])
        for a, logprobs, token_ids, values in zip(asked, *columns, strict=True)
    ]


def _of_next(logits_TV: Tensor, next_T: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of the next token, the likeliest ones and theirs."""
    logprob_TV = logits_TV.log_softmax(-1)
    topk_TK, token_TK = logprob_TV.topk(k)
    return logprob_TV.gather(1, next_T[:, None])[:, 0], token_TK, topk_TK
