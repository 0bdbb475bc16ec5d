"""RowData: what data modules of rows with named columns share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from areal_lit.contracts import PREVIEWED, DataModule, Preview, Source
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit.validation import sequence_limit, template_rules
from areal_lit_data.columns import Columns, Row, RowExamples, check_limits, check_rows, select

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class RowData(DataModule):
    """Base of modules whose rows become examples by columns; ``setup`` fills ``_train`` and ``_evaluation``.

    Args:
        prompt: column of plain text; ``prompt`` when neither messages nor template is given.
        messages: column of chat messages; a final assistant message becomes the field ``completion``.
        template: text with column names in braces, as in ``Question: {question}\\nAnswer:``.
        system: a system message in front; for chat prompts only.
        chat: send the text as a user message through the model's chat template.
        fields: field name -> column; None keeps every column under its own name.
        max_prompt_tokens: longer prompts are dropped and counted.
        max_examples: use at most that many rows for training.
        max_eval_examples: use at most that many rows of each evaluation set.
    """

    def __init__(
        self,
        *,
        prompt: str | None = None,
        messages: str | None = None,
        template: str | None = None,
        system: str | None = None,
        chat: bool = False,
        fields: Mapping[str, str] | None = None,
        max_prompt_tokens: int | None = None,
        max_examples: int | None = None,
        max_eval_examples: int | None = None,
    ) -> None:
        check_limits(
            max_prompt_tokens=max_prompt_tokens, max_examples=max_examples, max_eval_examples=max_eval_examples
        )
        self.columns = Columns(
            prompt=prompt, messages=messages, template=template, system=system, chat=chat, fields=fields
        )
        self.max_prompt_tokens = max_prompt_tokens
        self.max_examples = max_examples
        self.max_eval_examples = max_eval_examples
        self._train: dict[str, Source] = {}
        self._evaluation: dict[str, Source] = {}

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if trainer.template_kwargs and trainer.data is self and not (self.columns.chat or self.columns.messages):
            yield (
                f"template_kwargs {dict(trainer.template_kwargs)} has no effect on prompts of plain text; set chat: "
                "true, or leave it out"
            )
        if self.columns.chat or self.columns.messages:
            yield from template_rules(trainer)
        if self.max_prompt_tokens is None:
            return
        limit, setting = sequence_limit(trainer)
        generated = 0 if trainer.algorithm.offline else trainer.rollout.sampling.max_new_tokens
        if generated < limit < self.max_prompt_tokens + generated:
            yield (
                f"max_prompt_tokens {self.max_prompt_tokens} and rollout.sampling.max_new_tokens {generated} together "
                f"do not fit {setting} {limit}; raise the latter or lower one of them"
            )

    def train(self) -> Mapping[str, Source]:
        return self._train

    def evaluation(self) -> Mapping[str, Source]:
        return self._evaluation

    def example(self, row: Row) -> Example:
        """A row as an example, by its columns. Raises ValueError for what is missing or of the wrong type."""
        return self.columns.example(row)

    def _preview(self, rows: Sequence[Row], *, name: str) -> Preview:
        """What ``_source`` would hold first; ``rows`` may be the beginning of them."""
        examples = RowExamples(rows[:PREVIEWED], self.example)
        check_rows(examples, name)
        return Preview(examples=examples, max_prompt_tokens=self.max_prompt_tokens)

    def _source(
        self, rows: Sequence[Row], codec: TextCodec, *, name: str, limit: int | None, keep: Sequence[int] | None = None
    ) -> Source:
        """The rows that fit as a source; of all, or of those with the indices in ``keep``."""
        examples = RowExamples(rows, self.example, keep)
        return Source(
            examples=select(examples, codec, name=name, max_prompt_tokens=self.max_prompt_tokens, limit=limit)
        )
