"""Rows of data as sequences to train on: what `sft`, `dpo` and `reward_model` share.

Shapes: n tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np

from areal_lit.types import BoolArray, IntArray, Prompt, Trajectory
from areal_lit.validation import roles

if TYPE_CHECKING:
    from areal_lit.text import TextCodec
    from areal_lit.trainer import Trainer

TooLong = Literal["raise", "drop", "truncate"]
RowCompletion = str | Sequence[int]
"""A completion as text, or as the ids of its tokens as a model drew them, their end included."""


def is_row_completion(value: object) -> TypeGuard[RowCompletion]:
    """Whether the field of a row holds a completion; no token at all is none."""
    if isinstance(value, str):
        return True
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(token, int) for token in value)


def check_length(max_length: int | None) -> None:
    """Raise ValueError for a length that nothing fits."""
    if max_length is not None and max_length < 2:
        raise ValueError(f"max_length must be >= 2, a token and its predecessor, or null for any, got {max_length}")


def length_rules(trainer: Trainer, max_length: int | None, *, sequences: int = 1) -> Iterator[str]:
    """What is never split must fit a micro-batch of every role.

    Args:
        sequences: how many make an atom, 2 for pairs.
    """
    for name, role in roles(trainer).items():
        budget = role.strategy.max_tokens_per_microbatch
        if max_length is not None and sequences * max_length > budget:
            what = "a sequence is" if sequences == 1 else f"{sequences} sequences of that length are"
            yield (
                f"max_length {max_length} does not fit {name}.strategy.max_tokens_per_microbatch {budget}, and {what} "
                "never split; raise the latter or lower the former"
            )


def completed(prompt: Prompt, completion: RowCompletion, codec: TextCodec) -> tuple[IntArray, BoolArray]:
    """Token ids of a row's prompt, a completion and its end, and which are of the latter two, [n] each.

    Each part is encoded by itself, as it is when a model continues a prompt. Text is followed by an end token; tokens
    that a model drew are taken as they are. The first token is never of a completion: nothing precedes it.
    """
    start = codec.encode_prompt(prompt.example)
    drawn = [*codec.encode(completion), *codec.end_token_ids[:1]] if isinstance(completion, str) else completion
    ids = np.concatenate([start, np.array(drawn, dtype=np.int64)])
    mask = np.arange(len(ids)) >= len(start)
    mask[0] = False
    return ids, mask


def as_trajectory(
    prompt: Prompt,
    ids: IntArray,
    mask: BoolArray,
    *,
    max_length: int | None,
    too_long: TooLong,
    text: str = "",
    sample: int = 0,
    atom: int = -1,
    columns: Mapping[str, Any] | None = None,
) -> Trajectory | None:
    """The sequence; None if it is dropped, or truncated before its first trained token.

    Args:
        text: of the completion, for people.

    Raises ValueError for one longer than ``max_length`` where ``too_long`` says so.
    """
    if is_long := max_length is not None and len(ids) > max_length:
        if too_long == "raise":
            raise ValueError(
                f"row {prompt.row} of {prompt.source} has {len(ids)} tokens, more than max_length {max_length}; raise "
                "max_length, or set too_long to 'drop' or 'truncate'"
            )
        if too_long == "drop":
            return None
        ids, mask = ids[:max_length], mask[:max_length]
    if not mask.any():
        return None
    return Trajectory(
        token_ids=ids,
        loss_mask=mask,
        logprobs=np.zeros(len(ids), dtype=np.float32),
        versions=np.full(len(ids), -1, dtype=np.int64),
        prompt=prompt,
        text=text,
        stop_reason="length" if is_long else "stop",
        sample=sample,
        atom=atom,
        columns=columns or {},
    )
