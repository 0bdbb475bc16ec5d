"""OfflineBatches: batches from data, for algorithms that learn without rollouts (SFT, DPO, reward models)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from areal_lit.contracts import Algorithm
from areal_lit.prompts import PromptStream
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Group, Metric, Prompt

MAX_EMPTY_ROWS = 10_000
"""So many rows in a row without a sequence, and the run ends: there may be no other."""


class OfflineBatches:
    """Encodes the next rows of data each step; offers what the loop asks of rollouts.

    Args:
        groups_per_step: rows per training step.
    """

    def __init__(self, *, stream: PromptStream, algorithm: Algorithm, codec: TextCodec, groups_per_step: int) -> None:
        self._stream = stream
        self._algorithm = algorithm
        self._codec = codec
        self._groups_per_step = groups_per_step
        self._taken: list[Prompt] = []
        self._num_tokens = 0
        self._num_rows = 0
        self._num_empty = 0

    def next_batch(self, step: int) -> list[Group] | None:
        """Groups of one row each; fewer at the end of the data, None after it.

        Rows that the algorithm makes nothing of are left out and counted. ValueError when there are only such.
        """
        groups: list[Group] = []
        self._taken = []
        num_empty = 0
        while len(groups) < self._groups_per_step:
            prompt = self._stream.next()
            if prompt is None:
                break
            self._taken.append(prompt)
            group = encode_row(self._algorithm, prompt, self._codec)
            if group.trajectories:
                groups.append(group)
                num_empty = 0
                continue
            self._num_empty += 1
            num_empty += 1
            if num_empty == MAX_EMPTY_ROWS:
                raise ValueError(
                    f"{type(self._algorithm).__name__} left out {num_empty} rows in a row, the last of them row "
                    f"{prompt.row} of source {prompt.source!r}; see its max_length and too_long"
                )
        self._num_rows += len(groups)
        self._num_tokens += sum(len(t.token_ids) for group in groups for t in group.trajectories)
        return groups or None

    def give_back(self) -> None:
        """What the last ``next_batch`` took was not trained on."""
        self._stream.push_back(self._taken)

    def metrics(self) -> list[Metric]:
        """Rows and tokens trained on since the last call, and rows left out."""
        metrics = [
            Metric(name="data/rows", sum=self._num_rows, reduction="sum"),
            Metric(name="data/tokens", sum=self._num_tokens, reduction="sum"),
            Metric(name="data/empty_rows", sum=self._num_empty, reduction="sum"),
        ]
        self._num_rows = self._num_tokens = self._num_empty = 0
        return metrics

    def state_dict(self) -> Mapping[str, Any]:
        """The position in the data; nothing is in flight between steps."""
        return {"stream": self._stream.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stream.load_state_dict(state["stream"])

    def finished(self) -> Sequence[Group]:
        """There are no rollouts to report."""
        return ()

    def hand_over(self, version: int) -> list[Metric]:
        """There is no engine."""
        return []

    def check(self, batch: TokenBatch, step: int) -> list[Metric]:
        """There is no behaviour policy to drift from."""
        return []

    def check_step(self, metrics: Sequence[Metric], step: int) -> None:
        """Neither after training."""


def encode_row(algorithm: Algorithm, prompt: Prompt, codec: TextCodec) -> Group:
    """The group an offline algorithm makes of one row; errors name the row."""
    try:
        trajectories = algorithm.encode(prompt, codec)
    except (KeyError, ValueError) as error:
        raise ValueError(f"row {prompt.row} of source {prompt.source!r}: {error}") from error
    return Group(prompt=prompt, trajectories=tuple(trajectories))
