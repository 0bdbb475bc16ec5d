"""SFT: cross entropy on the tokens that are to be imitated.

Shapes: T packed tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from areal_lit.contracts.algorithm import Algorithm
from areal_lit.token_batch import Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import BoolArray, IntArray, Trajectory
from areal_lit_algorithms.pieces.aggregation import Aggregation, check_max_length, token_weights
from areal_lit_algorithms.sequences import TooLong, as_trajectory, check_length, completed, length_rules

if TYPE_CHECKING:
    from areal_lit.text import TextCodec
    from areal_lit.trainer import Trainer
    from areal_lit.types import Example, Prompt

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class SFT(Algorithm):
    """Raise the log-prob of given completions.

    A row is either a prompt with a completion (a string field), which is trained together with an end token;
    or a whole conversation as chat messages, whose assistant turns are trained. Their place comes from the template's
    ``{% generation %}`` markers; a template without them is refused.

    Args:
        completion_field: the field of a row that holds the completion.
        max_length: longest sequence in tokens, prompt included; null for any.
        too_long: what happens to a longer one. ``raise`` names it, ``drop`` leaves it out,
            ``truncate`` cuts its end off.
        aggregation: token_mean, sequence_mean, sequence_sum, group_mean or constant (then over ``max_length``).
    """

    offline: ClassVar[bool] = True

    def __init__(
        self,
        *,
        completion_field: str = "completion",
        max_length: int | None = None,
        too_long: TooLong = "raise",
        aggregation: Aggregation = "token_mean",
    ) -> None:
        check_length(max_length)
        if aggregation == "constant":
            check_max_length(aggregation, max_length)
        self.completion_field = completion_field
        self.max_length = max_length
        self.too_long = too_long
        self.aggregation = aggregation

    def rules(self, trainer: Trainer) -> Iterable[str]:
        yield from length_rules(trainer, self.max_length)

    def check(self, example: Example) -> None:
        """Raise ValueError unless the example holds a completion or is a conversation."""
        completion = example.fields.get(self.completion_field)
        if not isinstance(completion, str) and (completion is not None or isinstance(example.prompt, str)):
            raise ValueError(
                f"needs a string in field {self.completion_field!r}, got {type(completion).__name__}; its fields "
                f"are {sorted(example.fields)}: name the right one, or give a whole conversation as chat messages"
            )

    def encode(self, prompt: Prompt, codec: TextCodec) -> list[Trajectory]:
        """The row's sequence; empty if it is dropped, or truncated before its first trained token."""
        ids, mask = self._tokens(prompt, codec)
        text = str(prompt.fields.get(self.completion_field) or "")
        made = as_trajectory(prompt, ids, mask, max_length=self.max_length, too_long=self.too_long, text=text)
        return [] if made is None else [made]

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        budget = self.max_length if self.aggregation == "constant" else None
        return minibatch.with_columns(token_weight=token_weights(minibatch, self.aggregation, max_length=budget))

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": _cross_entropy}

    def _tokens(self, prompt: Prompt, codec: TextCodec) -> tuple[IntArray, BoolArray]:
        """Token ids and which of them are trained, [n] each; the first never is."""
        try:
            self.check(prompt.example)
        except ValueError as error:
            raise ValueError(f"row {prompt.row} of {prompt.source} {error}") from error
        completion = prompt.fields.get(self.completion_field)
        if completion is not None:
            return completed(prompt, completion, codec)
        ids, mask = _conversation(prompt, codec)
        mask[0] = False
        return ids, mask


def _cross_entropy(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    assert outputs.logprob_T is not None
    values_T = -outputs.logprob_T
    return Loss(values=values_T, metrics=(masked_metric("cross_entropy", values_T, batch["loss_mask"]),))


def _conversation(prompt: Prompt, codec: TextCodec) -> tuple[IntArray, BoolArray]:
    """A conversation through the template, and which tokens an assistant wrote."""
    template = getattr(codec.tokenizer, "chat_template", None)
    if not isinstance(template, str) or not _GENERATION_MARKER.search(template):
        raise ValueError(
            f"the chat template of {codec.spec.path!r} has no {{% generation %}} markers, so what the assistant wrote "
            "cannot be told from the rest; add them to the template, or give each row as prompt and completion"
        )
    messages: list[dict[str, Any]] = [dict(m) for m in prompt.example.prompt if not isinstance(m, str)]
    encoded = codec.tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **codec.template_kwargs
    )
    ids = np.asarray(encoded["input_ids"], dtype=np.int64)
    mask = np.asarray(encoded["assistant_masks"], dtype=bool)
    if not mask.any():
        raise ValueError(
            f"row {prompt.row} of {prompt.source} has no assistant turn to train on; end its messages with one, "
            f"or give the answer as a completion"
        )
    return ids, mask
