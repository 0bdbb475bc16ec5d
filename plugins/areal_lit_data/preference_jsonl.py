"""Preferences from JSON Lines files: a prompt, a completion that was chosen, one that was rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_lit.types import Example
from areal_lit_data.columns import MissingColumn, Row
from areal_lit_data.jsonl import Jsonl


class PreferenceJsonl(Jsonl):
    """Rows with a prompt and two completions of it, for `dpo` and `reward_model`.

    The prompt is plain text (``prompt``, ``template``) or chat messages (``messages``), and is always given: it is not
    guessed from what the completions share. Each completion is text or, after a chat prompt, also a list of one
    assistant message. Every row is looked at when files are read; a malformed one is told with file and line.

    Args:
        chosen: column of the better completion, which becomes the field ``chosen``.
        rejected: column of the worse one, which becomes the field ``rejected``.
        name: of the training source, in metrics.
    """

    def __init__(
        self, *, chosen: str = "chosen", rejected: str = "rejected", name: str = "preferences", **jsonl: Any
    ) -> None:
        super().__init__(name=name, **jsonl)
        self.chosen = chosen
        self.rejected = rejected

    def example(self, row: Row) -> Example:
        """A preference as an example. Raises ValueError for what is malformed, or prefers nothing."""
        example = super().example(row)
        if (column := self.columns.messages) is not None and row[column][-1]["role"] == "assistant":
            raise ValueError(
                f"column {column!r} ends with an assistant message, but it is the prompt that chosen and rejected "
                "answer; end it before their answers"
            )
        is_chat = not isinstance(example.prompt, str)
        sides = {
            "chosen": completion_text(row, self.chosen, is_chat=is_chat),
            "rejected": completion_text(row, self.rejected, is_chat=is_chat),
        }
        if sides["chosen"] == sides["rejected"]:
            raise ValueError(f"chosen and rejected are the same, {sides['chosen']!r:.60}; leave the row out")
        return Example(prompt=example.prompt, fields={**example.fields, **sides})


def completion_text(row: Row, column: str, *, is_chat: bool) -> str:
    """A completion as text. Raises ValueError for anything but text or, in a chat, one assistant message."""
    if column not in row:
        raise MissingColumn(column, row.keys())
    value = row[column]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"column {column!r} must hold text or a list of one assistant message, got {value!r:.60}")
    if not is_chat:
        raise ValueError(
            f"column {column!r} holds chat messages, but the prompt is plain text; name the prompt's messages by "
            "messages, or set chat: true"
        )
    message = value[0] if len(value) == 1 else None
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        raise ValueError(
            f"column {column!r} must hold one assistant message, the answer to the prompt, got {len(value)} "
            f"messages, {value!r:.60}; what comes before it belongs into the prompt"
        )
    content = message.get("content")
    if not isinstance(content, str):
        raise ValueError(f"column {column!r}: an assistant message has text as content, got {content!r:.60}")
    return content
