"""HH-RLHF: dialogues with a chosen and a rejected last answer (arXiv 2204.05862, MIT licence)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from areal_lit.contracts import Preview, Source
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit_data.columns import Row
from areal_lit_data.huggingface import load_split
from areal_lit_data.jsonl import PREVIEW_BYTES, read_rows
from areal_lit_data.published import Published

TURN = re.compile(r"\n\n(Human|Assistant):")
WAY_OUT = "rows that are no pairs are left out and counted with unusable: drop"
ROLES = {"Human": "user", "Assistant": "assistant"}

log = logging.getLogger(__name__)


class HHRLHF(Published):
    """HH-RLHF, or data in its format: a text per side, whose turns begin with ``\\n\\nHuman:`` or ``\\n\\nAssistant:``.

    The prompt is everything up to the last assistant turn, which must be the same on both sides; the fields ``chosen``
    and ``rejected`` are that last turn of each. Some published rows are no such pairs: their sides differ in earlier
    turns, or end with a human one.

    Args:
        directory: holds train.jsonl and test.jsonl, or the published train.jsonl.gz and test.jsonl.gz; None loads from
            the hub.
        hub_id: dataset on the Hugging Face hub (needs the extra ``datasets``).
        subset: directory of the hub's dataset, such as ``harmless-base``.
        unusable: what happens to rows that are no pairs. ``raise`` names the first one, ``drop`` leaves them out and
            counts them.
        chat: send turns as chat messages through the model's chat template; off keeps the text as it is.
        max_prompt_tokens: longer prompts are dropped and counted.
        max_examples: use at most that many pairs for training.
        max_eval_examples: use at most that many test pairs.
    """

    name = "hh_rlhf"

    def __init__(
        self,
        *,
        directory: str | None = None,
        hub_id: str = "Anthropic/hh-rlhf",
        subset: str = "helpful-base",
        unusable: Literal["raise", "drop"] = "raise",
        chat: bool = False,
        max_prompt_tokens: int | None = None,
        max_examples: int | None = None,
        max_eval_examples: int | None = None,
    ) -> None:
        super().__init__(
            directory=directory, hub_id=hub_id, prompt="chosen", fields={"rejected": "rejected"}, chat=chat,
            max_prompt_tokens=max_prompt_tokens, max_examples=max_examples, max_eval_examples=max_eval_examples,
        )  # fmt: skip
        if unusable not in ("raise", "drop"):
            raise ValueError(f"unusable must be raise or drop, got {unusable!r}")
        self.subset = subset
        self.unusable = unusable

    def preview(self) -> Mapping[str, Preview]:
        if self.directory is None:
            return {}
        file = self._file("train")
        rows = read_rows([file], self._check, PREVIEW_BYTES)
        return {self.name: self._preview([rows[index] for index in self._usable(rows, file)], name=file)}

    def example(self, row: Row) -> Example:
        """A pair as an example. Raises ValueError for one that is none."""
        self.columns.check(row.keys())
        (start, chosen), (other_start, rejected) = (split_dialogue(row[side]) for side in ("chosen", "rejected"))
        if start != other_start:
            raise ValueError(f"the sides differ before their last answer: {_difference(start, other_start)}")
        if chosen == rejected:
            raise ValueError(f"both sides end with {chosen!r:.60}, which prefers nothing")
        if not self.columns.chat:
            return Example(prompt=start, fields={"chosen": chosen, "rejected": rejected})
        return Example(prompt=messages(start), fields={"chosen": chosen.strip(), "rejected": rejected.strip()})

    def _file(self, split: str) -> str:
        directory = Path(str(self.directory)).expanduser()
        packed = directory / f"{split}.jsonl.gz"
        return str(packed if packed.exists() else directory / f"{split}.jsonl")

    def _load(self, split: str, codec: TextCodec, limit: int | None) -> Source:
        rows: Any
        if self.directory is None:
            name = f"{self.hub_id} {self.subset} [{split}]"
            rows = load_split(self.hub_id, split, data_files={split: [f"{self.subset}/{split}.jsonl.gz"]})
            self.columns.check(rows.column_names)
        else:
            name = self._file(split)
            rows = read_rows([name], self._check)
        keep = self._usable(rows, name)
        if num_dropped := len(rows) - len(keep):
            log.warning("%s: left out %d of %d rows that are no pairs", name, num_dropped, len(rows))
        return self._source(rows, codec, name=name, limit=limit, keep=keep)

    def _check(self, row: Row) -> None:
        if self.unusable == "raise" and (problem := self._problem(row)):
            raise ValueError(f"{problem}; {WAY_OUT}")

    def _usable(self, rows: Sequence[Row], name: str) -> list[int]:
        """Indices of the rows that are pairs. Raises ValueError for one that is none, if told to, or if none is."""
        problems = {index: problem for index, row in enumerate(rows) if (problem := self._problem(row))}
        if problems:
            first, problem = next(iter(problems.items()))
            if self.unusable == "raise":
                raise ValueError(f"{name}, row {first}: {problem}; {WAY_OUT}")
            if len(problems) == len(rows):
                raise ValueError(f"{name}: none of its {len(rows)} rows is a pair; row {first}: {problem}")
        return [index for index in range(len(rows)) if index not in problems]

    def _problem(self, row: Row) -> str:
        """Why a row is no pair; empty if it is one."""
        try:
            self.example(row)
        except ValueError as error:
            return str(error)
        return ""


def split_dialogue(text: Any) -> tuple[str, str]:
    """A side's text up to and including its last ``\\n\\nAssistant:``, and what follows.

    Raises ValueError for what is no dialogue, or does not end with an assistant turn after a human one.
    """
    if not isinstance(text, str):
        raise ValueError(f"a side is one text, got {type(text).__name__}")
    turns = list(TURN.finditer(text))
    if not turns or turns[0].start() != 0 or turns[0][1] != "Human":
        raise ValueError(f"a dialogue begins with '\\n\\nHuman:', got {text!r:.60}")
    if turns[-1][1] != "Assistant":
        raise ValueError(f"a dialogue ends with an assistant turn, got {text[turns[-1].start() :]!r:.60}")
    end = turns[-1].end()
    return text[:end], text[end:]


def messages(start: str) -> tuple[Mapping[str, str], ...]:
    """The turns of a prompt as chat messages; the last ``\\n\\nAssistant:`` is the generation prompt's to write."""
    turns = list(TURN.finditer(start))
    ends = [turn.start() for turn in turns[1:]]
    return tuple(
        {"role": ROLES[turn[1]], "content": start[turn.end() : end].strip()}
        for turn, end in zip(turns, ends, strict=False)
    )


def _difference(one: str, other: str) -> str:
    """Where two texts part."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"{one[at : at + 30]!r} and {other[at : at + 30]!r} at character {at}"
