"""SFT: cross entropy on the tokens that are to be imitated.

Shapes: T packed tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from areal_lit.contracts.algorithm import Algorithm
from areal_lit.token_batch import Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import BoolArray, IntArray, Trajectory
from areal_lit_algorithms.aggregation import Aggregation, check_max_length, token_weights

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
        aggregation: token_mean, sequence_mean, group_mean or constant (then over ``max_length``).
    """

    offline: ClassVar[bool] = True

    def __init__(
        self,
        *,
        completion_field: str = "completion",
        max_length: int | None = None,
        too_long: Literal["raise", "drop", "truncate"] = "raise",
        aggregation: Aggregation = "token_mean",
    ) -> None:
        if aggregation == "constant":
            check_max_length(aggregation, max_length)
        self.completion_field = completion_field
        self.max_length = max_length
        self.too_long = too_long
        self.aggregation = aggregation

    def rules(self, trainer: Trainer) -> Iterable[str]:
        budget = trainer.policy.strategy.max_tokens_per_microbatch
        if self.max_length is not None and self.max_length > budget:
            yield (
                f"max_length {self.max_length} does not fit policy.strategy.max_tokens_per_microbatch {budget}, and a "
                "sequence is never split; raise the latter or lower the former"
            )

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
        if is_long := self.max_length is not None and len(ids) > self.max_length:
            if self.too_long == "raise":
                raise ValueError(
                    f"row {prompt.row} of {prompt.source} has {len(ids)} tokens, more than max_length "
                    f"{self.max_length}; raise max_length, or set too_long to 'drop' or 'truncate'"
                )
            if self.too_long == "drop":
                return []
            ids, mask = ids[: self.max_length], mask[: self.max_length]
        if not mask.any():
            return []
        n = len(ids)
        return [
            Trajectory(
                token_ids=ids,
                loss_mask=mask,
                logprobs=np.zeros(n, dtype=np.float32),
                versions=np.full(n, -1, dtype=np.int64),
                prompt=prompt,
                stop_reason="length" if is_long else "stop",
            )
        ]

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
        if completion is None:
            ids, mask = _conversation(prompt, codec)
        else:
            start = codec.encode_prompt(prompt.example)
            end = np.array(codec.end_token_ids[:1], dtype=np.int64)
            ids = np.concatenate([start, codec.encode(completion), end])
            mask = np.arange(len(ids)) >= len(start)
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
