"""GSM8K: grade-school word problems whose answer is one number (arXiv 2110.14168, MIT licence)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from areal_lit.contracts import Preview, Source
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit_data.columns import Row
from areal_lit_data.huggingface import load_split
from areal_lit_data.jsonl import PREVIEW_BYTES, read_rows
from areal_lit_data.published import Published

FINAL = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")
CALCULATOR = re.compile(r"<<[^<>]*>>")


class GSM8K(Published):
    """GSM8K from the hub or from local files in the original format.

    Fields: ``answer`` (the final number without commas), ``solution`` (the original text), ``completion`` (the
    solution without calculator annotations, for `sft`), ``question``.

    Args:
        directory: holds train.jsonl and test.jsonl in the original format; None loads from the hub.
        hub_id: dataset on the Hugging Face hub (needs the extra ``datasets``).
        template: the prompt, with ``{question}``.
        system: a system message in front; for chat prompts only.
        chat: send the prompt as a user message through the model's chat template.
        max_prompt_tokens: longer prompts are dropped and counted.
        max_examples: use at most that many problems for training.
        max_eval_examples: use at most that many of the 1,319 test problems.
    """

    name = "gsm8k"

    def __init__(
        self,
        *,
        directory: str | None = None,
        hub_id: str = "openai/gsm8k",
        template: str = "Question: {question}\nAnswer:",
        system: str | None = None,
        chat: bool = False,
        max_prompt_tokens: int | None = None,
        max_examples: int | None = None,
        max_eval_examples: int | None = None,
    ) -> None:
        super().__init__(
            directory=directory, hub_id=hub_id, template=template, system=system, chat=chat,
            fields={"question": "question", "solution": "answer"},
            max_prompt_tokens=max_prompt_tokens, max_examples=max_examples, max_eval_examples=max_eval_examples,
        )  # fmt: skip

    def preview(self) -> Mapping[str, Preview]:
        if self.directory is None:
            return {}
        rows = read_rows([f"{self.directory}/train.jsonl"], self.example, PREVIEW_BYTES)
        return {self.name: self._preview(rows, name=f"{self.directory}/train.jsonl")}

    def _load(self, split: str, codec: TextCodec, limit: int | None) -> Source:
        rows: Any
        if self.directory is None:
            rows = load_split(self.hub_id, split, subset="main")
            self.columns.check(rows.column_names)
        else:
            rows = read_rows([f"{self.directory}/{split}.jsonl"], self.example)
        return self._source(rows, codec, name=f"gsm8k [{split}]", limit=limit)

    def example(self, row: Row) -> Example:
        """A problem as an example. Raises ValueError when its solution does not end in ``#### number``."""
        example = self.columns.example(row)
        solution = str(row["answer"])
        completion = CALCULATOR.sub("", solution)
        if not self.columns.chat:
            completion = f" {completion}"
        return Example(
            prompt=example.prompt,
            fields={**example.fields, "answer": final_number(solution), "completion": completion},
        )


def final_number(solution: str) -> str:
    """The number after ``####``, without commas."""
    found = FINAL.search(solution)
    if found is None:
        raise ValueError(f"a GSM8K solution ends in '#### number', got {solution[-40:]!r}")
    return found.group(1).replace(",", "")
