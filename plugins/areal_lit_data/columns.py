"""From rows with named columns to examples: what `jsonl`, `huggingface` and `gsm8k` share."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from areal_lit.names import closest
from areal_lit.text import TextCodec
from areal_lit.types import Example

Row = Mapping[str, Any]
RowT = TypeVar("RowT")

log = logging.getLogger(__name__)


class MissingColumn(ValueError):
    """A row lacks a column that the recipe names."""

    def __init__(self, column: str, available: Collection[str]) -> None:
        super().__init__(f"no column {column!r}; {closest(column, available)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns make the prompt, and which the fields that rewards and offline algorithms read.

    Args:
        prompt: column of plain text; ``prompt`` when none of the three is given.
        messages: column of chat messages. A final assistant message becomes the field ``completion``.
        template: text with column names in braces, as in ``Question: {question}\\nAnswer:``.
        system: a system message in front; for chat prompts only.
        chat: send the text as a user message through the model's chat template.
        fields: field name -> column; None keeps every column under its own name.
    """

    prompt: str | None = None
    messages: str | None = None
    template: str | None = None
    system: str | None = None
    chat: bool = False
    fields: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("prompt", "messages", "template") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"the prompt comes from one of prompt, messages and template, got {' and '.join(given)}")
        if self.system is not None and not (self.chat or self.messages):
            raise ValueError("system needs a chat prompt; set chat: true, or put the instruction into the template")
        if self.chat and self.messages:
            raise ValueError("messages are a chat already; chat: true is for a prompt or template of plain text")
        if self.template is not None:
            template_columns(self.template)

    @property
    def used(self) -> tuple[str, ...]:
        """Every column that must exist, in a stable order."""
        if self.template is not None:
            prompt = template_columns(self.template)
        else:
            prompt = (self.messages or self.prompt or "prompt",)
        return tuple(dict.fromkeys((*prompt, *(self.fields or {}).values())))

    def check(self, available: Collection[str]) -> None:
        """Raise MissingColumn unless all used columns are among the available ones."""
        for column in self.used:
            if column not in available:
                raise MissingColumn(column, available)

    def example(self, row: Row) -> Example:
        """The row as an example. Raises ValueError for what is missing or of the wrong type."""
        self.check(row.keys())
        fields = dict(row) if self.fields is None else {name: row[column] for name, column in self.fields.items()}
        if self.messages is not None:
            messages = _messages(row[self.messages], self.messages)
            if messages[-1]["role"] == "assistant":
                fields.setdefault("completion", messages[-1]["content"])
                messages = messages[:-1]
            if not messages:
                raise ValueError(f"column {self.messages!r} holds an assistant message and nothing before it")
            if self.fields is None:
                del fields[self.messages]
            return Example(prompt=(*self._system_message, *messages), fields=fields)
        text = self._text(row)
        if not self.chat:
            return Example(prompt=text, fields=fields)
        return Example(prompt=(*self._system_message, {"role": "user", "content": text}), fields=fields)

    @property
    def _system_message(self) -> tuple[dict[str, str], ...]:
        return () if self.system is None else ({"role": "system", "content": self.system},)

    def _text(self, row: Row) -> str:
        if self.template is not None:
            return self.template.format_map({name: row[name] for name in template_columns(self.template)})
        column = self.prompt or "prompt"
        text = row[column]
        if not isinstance(text, str):
            raise ValueError(
                f"column {column!r} must hold text, got {type(text).__name__}; chat messages are named by messages"
            )
        return text


def template_columns(template: str) -> tuple[str, ...]:
    """Column names of a template. Raises ValueError for anything but ``{name}``, or when there is none."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"template {template!r}: {error}; write {{{{ and }}}} for braces that are meant as text"
        ) from error
    names = [name for _, name, _, _ in parts if name is not None]
    wrong = [name for name in names if not name or any(character in name for character in ".[]")]
    if wrong or not names:
        got = f"{{{wrong[0]}}}" if wrong else "none"
        raise ValueError(f"template {template!r} needs column names in braces, as in {{question}}, got {got}")
    return tuple(dict.fromkeys(names))


def _messages(value: Any, column: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"column {column!r} must hold a list of chat messages, got {value!r:.60}")
    for message in value:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise ValueError(f"column {column!r}: a chat message has role and content, got {message!r:.60}")
    return tuple(value)


class RowExamples(Sequence[Example], Generic[RowT]):
    """Examples made from rows on access.

    Args:
        rows: random access to rows.
        make: the example of a row.
        keep: indices of the rows that count; None for all.
    """

    def __init__(
        self, rows: Sequence[RowT], make: Callable[[RowT], Example], keep: Sequence[int] | None = None
    ) -> None:
        self.rows = rows
        self.make = make
        self.keep = range(len(rows)) if keep is None else keep

    def __len__(self) -> int:
        return len(self.keep)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> RowExamples[RowT]: ...
    def __getitem__(self, index: int | slice) -> Example | RowExamples[RowT]:
        if isinstance(index, slice):
            return RowExamples(self.rows, self.make, self.keep[index])
        return self.make(self.rows[self.keep[index]])


def select(
    examples: RowExamples[RowT], codec: TextCodec, *, name: str, max_prompt_tokens: int | None, limit: int | None
) -> RowExamples[RowT]:
    """The examples whose prompts fit, at most ``limit``; what is dropped is counted and logged.

    Raises ValueError when nothing is left.
    """
    check_rows(examples, name)
    if max_prompt_tokens is None:
        return examples if limit is None else examples[:limit]
    keep: list[int] = []
    num_seen = 0
    for position, row in enumerate(examples.keep):
        if limit is not None and len(keep) == limit:
            break
        num_seen += 1
        if len(codec.encode_prompt(examples[position])) <= max_prompt_tokens:
            keep.append(row)
    if num_dropped := num_seen - len(keep):
        log.warning(
            "%s: dropped %d of %d prompts longer than %d tokens", name, num_dropped, num_seen, max_prompt_tokens
        )
    if not keep:
        raise ValueError(
            f"{name}: all {num_seen} prompts are longer than max_prompt_tokens={max_prompt_tokens}; raise it"
        )
    return RowExamples(examples.rows, examples.make, keep)


def check_rows(examples: Sequence[Example], name: str) -> None:
    """Raise ValueError when there are none."""
    if not len(examples):
        raise ValueError(f"{name} holds no rows; give a file or split with at least one")


def check_limits(**limits: int | None) -> None:
    """Raise ValueError for a limit below 1; None is no limit."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}; leave it out for no limit")
