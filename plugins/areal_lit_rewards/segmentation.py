"""Where the steps of a completion begin and end, in characters and in tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from areal_lit.text import TextCodec
from areal_lit.types import Scored, StepScore, Trajectory

Total = Literal["mean", "sum", "min", "last"]
"""How a completion's reward comes of its steps' scores; min is that of the weakest step (arXiv 2312.08935)."""

TOTALS: tuple[Total, ...] = ("mean", "sum", "min", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a completion.

    Args:
        text: with the delimiter that ends it.
        end: characters of the completion up to its end.
        last_token: index in the trajectory.
    """

    text: str
    end: int
    last_token: int


def steps_of(trajectory: Trajectory, codec: TextCodec, delimiter: str) -> tuple[str, list[Step]]:
    """The generated text, and its steps; none where nothing was generated.

    The text is that of the generated tokens of all turns. A delimiter belongs to the step that it ends, and blank steps
    to the one before. The last step ends with the last generated token, an end token included.
    """
    import numpy as np

    tokens = np.flatnonzero(trajectory.loss_mask)
    if not len(tokens):
        return "", []
    generated = trajectory.token_ids[tokens]
    text = codec.decode(generated)
    ends = step_ends(text, delimiter)
    last_tokens = [*tokens[codec.last_tokens(generated, ends[:-1])], tokens[-1]]
    starts = [0, *ends[:-1]]
    return text, [
        Step(text=text[start:end], end=end, last_token=int(token))
        for start, end, token in zip(starts, ends, last_tokens, strict=True)
    ]


def step_ends(text: str, delimiter: str) -> list[int]:
    """Characters up to the end of each step, in order; there is at least one, and the last ends the text."""
    ends: list[int] = []
    start = 0
    for stop, end in [*(match.span() for match in re.finditer(delimiter, text)), (len(text), len(text))]:
        if text[start:stop].strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        start = end
    return ends or [len(text)]


def check_steps(delimiter: str, total: Total) -> None:
    """Raise ValueError for a delimiter that is no regular expression, or an unknown total."""
    try:
        re.compile(delimiter)
    except re.error as error:
        raise ValueError(f"delimiter is not a regular expression ({error}), got {delimiter!r}") from error
    if not delimiter:
        raise ValueError("delimiter must match what ends a step, such as a line break, got ''")
    if total not in TOTALS:
        raise ValueError(f"total must be one of {', '.join(TOTALS)}, got {total!r}")


def total_of(scores: Sequence[float], total: Total) -> float:
    """A completion's reward; 0 without steps."""
    if not scores:
        return 0.0
    return {"mean": sum(scores) / len(scores), "sum": sum(scores), "min": min(scores), "last": scores[-1]}[total]


def scored(steps: Sequence[Step], scores: Sequence[float], total: Total) -> Scored:
    """What a reward returns that scored these steps, in order."""
    pairs = zip(steps, scores, strict=True)
    return Scored(
        value=total_of(scores, total),
        metrics={"steps": float(len(steps))},
        steps=tuple(StepScore(last_token=step.last_token, value=score) for step, score in pairs),
    )
