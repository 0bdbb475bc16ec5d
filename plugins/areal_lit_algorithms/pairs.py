"""Pairs: a prompt with a chosen and a rejected completion, as one atom; what `dpo` and `reward_model` share.

Shapes: T packed tokens, S segments (sides), A atoms (pairs).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from areal_lit.contracts.algorithm import Algorithm
from areal_lit.token_batch import Dim, Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric, Trajectory
from areal_lit_algorithms.sequences import (
    RowCompletion,
    TooLong,
    as_trajectory,
    check_length,
    completed,
    is_row_completion,
    length_rules,
)  # fmt: skip

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.text import TextCodec
    from areal_lit.trainer import Trainer
    from areal_lit.types import Example, Prompt


class PairAlgorithm(Algorithm):
    """A loss per pair of completions of one prompt, over the mean of pairs.

    A row has a prompt and two completions: text, which an end token follows, or token ids as a model drew them, which
    are taken as they are. The prompt is what the row says it is: a beginning that both completions happen to share is
    part of them. A pair is one atom, so no rank, mini- or micro-batch ever sees half of it; where one side is left out,
    the pair is, and so is one of equal sides.

    Args:
        chosen_field: the field of a row that holds the better completion.
        rejected_field: the field that holds the worse one.
        max_length: longest side in tokens, prompt included; null for any.
        too_long: what happens to a pair with a longer side. ``raise`` names it, ``drop`` leaves it out,
            ``truncate`` cuts the side's end off.
    """

    offline: ClassVar[bool] = True

    def __init__(
        self,
        *,
        chosen_field: str = "chosen",
        rejected_field: str = "rejected",
        max_length: int | None = None,
        too_long: TooLong = "raise",
    ) -> None:
        check_length(max_length)
        self.chosen_field = chosen_field
        self.rejected_field = rejected_field
        self.max_length = max_length
        self.too_long = too_long

    @abstractmethod
    def pair_loss(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        """The loss per atom, [A]; the core takes the mean over whole pairs."""

    @property
    def columns(self) -> Mapping[str, Dim]:
        """``sign``: 1 of the chosen side, -1 of the rejected one."""
        return {"sign": "S"}

    def rules(self, trainer: Trainer) -> Iterable[str]:
        yield from length_rules(trainer, self.max_length, sequences=2)

    def check(self, example: Example) -> None:
        """Raise ValueError unless the example holds two different completions, as text or token ids."""
        chosen, rejected = self._sides(example)
        if chosen == rejected:
            raise ValueError(f"prefers a completion to itself: both sides are {chosen!r:.60}; leave the row out")

    def encode(self, prompt: Prompt, codec: TextCodec) -> list[Trajectory]:
        """The row's two sides, the chosen one first; none if one is left out or both, maybe cut off, are the same."""
        made: list[Trajectory] = []
        for sample, (completion, sign) in enumerate(zip(self._sides(prompt.example), (1.0, -1.0), strict=True)):
            ids, mask = completed(prompt, completion, codec)
            text = completion if isinstance(completion, str) else codec.decode(ids[mask])
            side = as_trajectory(
                prompt, ids, mask, max_length=self.max_length, too_long=self.too_long, text=text, sample=sample,
                atom=0, columns={"sign": sign},
            )  # fmt: skip
            if side is None:
                return []
            made.append(side)
        chosen, rejected = (side.token_ids.tolist() for side in made)
        return [] if chosen == rejected else made

    def _sides(self, example: Example) -> tuple[RowCompletion, RowCompletion]:
        return self._side(example, self.chosen_field), self._side(example, self.rejected_field)

    def _side(self, example: Example, name: str) -> RowCompletion:
        side = example.fields.get(name)
        if not is_row_completion(side):
            raise ValueError(
                f"needs a string or token ids in field {name!r}, got {type(side).__name__}; its fields are "
                f"{sorted(example.fields)}: name the right ones by chosen_field and rejected_field, or read chat "
                "messages with data preference_jsonl"
            )
        return side

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        whole_A = is_whole(minibatch)
        return minibatch.with_columns(atom_weight=whole_A.float() / whole_A.sum().clamp(min=1))

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": self.pair_loss}


def is_whole(batch: TokenBatch) -> Tensor:
    """Whether both sides of a pair have loss tokens, bool [A]; half a pair compares nothing."""
    return batch.atom_sum((batch.loss_tokens_S > 0).long()) == 2


def margin(score_S: Tensor, batch: TokenBatch) -> Tensor:
    """By how much the chosen side's score exceeds the rejected one's, [A]."""
    has_tokens_S = batch.loss_tokens_S > 0
    return batch.atom_sum((batch["sign"] * score_S).where(has_tokens_S, score_S.new_zeros(())))


def pair_metrics(reward_S: Tensor, batch: TokenBatch) -> tuple[Metric, ...]:
    """How the rewards of the sides compare, over whole pairs: accuracy (a tie is wrong), margin, and each side's mean.

    Args:
        reward_S: in the units of the loss.
    """
    whole_A, margin_A = is_whole(batch), margin(reward_S, batch)
    whole_S = whole_A[batch["atom"]]
    return (
        masked_metric("pair_accuracy", (margin_A > 0).float(), whole_A),
        masked_metric("reward_margin", margin_A, whole_A),
        masked_metric("reward_chosen", reward_S, whole_S & (batch["sign"] > 0)),
        masked_metric("reward_rejected", reward_S, whole_S & (batch["sign"] < 0)),
    )
