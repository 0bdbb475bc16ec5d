"""What a model can take and an engine can answer; anything else is refused where it enters.

Shapes: n tokens of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from areal_lit.types import BoolArray, Completion, FloatArray, IntArray

LARGEST_LOGPROB = 1e-3
"""Log-probs are at most 0; rounding in low precision may lift them by so much."""


class PromptTooLong(ValueError):
    """A prompt that the model cannot continue with the tokens it is to draw; trying again changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on sequences; None where one is not known.

    Args:
        max_tokens: of a whole sequence, prompt and completion together.
        max_tokens_rule: whose limit that is, for messages.
        vocab_size: token ids are below it.
        newest_version: of weights that any engine was ever offered.
    """

    max_tokens: int | None = None
    max_tokens_rule: str = ""
    vocab_size: int | None = None
    newest_version: int | None = None


def completion_problem(completion: Completion, *, budget: int, limits: Limits) -> str:
    """What an engine cannot have drawn, in words; empty for a sound completion."""
    token_ids, logprobs, versions = completion.token_ids, completion.logprobs, completion.versions
    n = len(token_ids)
    if not logprobs.shape == versions.shape == token_ids.shape == (n,) or n > budget:
        return (
            f"{n} tokens, {len(logprobs)} log-probs, {len(versions)} versions for a budget of {budget}, and all must "
            "be flat and equally many"
        )
    return version_problem(versions, limits=limits) or token_problem(token_ids, logprobs, limits=limits)


def version_problem(versions: IntArray, *, limits: Limits) -> str:
    """Which version no token that was drawn can have, in words; empty when all can."""
    if not len(versions):
        return ""
    newest = limits.newest_version
    if newest is not None and versions.max() > newest:
        return f"tokens of version {versions.max()}, and no engine was offered any after {newest}"
    if versions.min() < 0:
        return f"tokens of version {versions.min()}, and what was drawn has one >= 0: that of its weights"
    return ""


def token_problem(token_ids: IntArray, logprobs: FloatArray, *, limits: Limits, chosen: BoolArray | None = None) -> str:
    """Which token cannot be, in words; empty when all can.

    Args:
        chosen: tokens whose log-probs count, [n]; None is all.
    """
    if not len(token_ids):
        return ""
    if token_ids.min() < 0 or (limits.vocab_size is not None and token_ids.max() >= limits.vocab_size):
        bound = "" if limits.vocab_size is None else f" and below the vocabulary's {limits.vocab_size}"
        return f"token ids from {token_ids.min()} to {token_ids.max()}, and all must be >= 0{bound}"
    counted = logprobs if chosen is None else logprobs[chosen]
    wrong = counted[~(np.isfinite(counted) & (counted <= LARGEST_LOGPROB))]
    return f"log-prob {wrong[0]}, and all must be finite and at most 0" if len(wrong) else ""
