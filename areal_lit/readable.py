"""Prompts and completions as text for people and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def messages_of(prompt: str | Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Role and content of each chat message; plain text is one message without a role."""
    if isinstance(prompt, str):
        return [("", prompt)]
    return [(str(message.get("role", "")), str(message.get("content", ""))) for message in prompt]


def prompt_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """The prompt as plain text; of chat messages each under its role."""
    return "\n\n".join(f"{role}: {content}" if role else content for role, content in messages_of(prompt))


def whole_characters(text: str) -> str:
    """Without halves of surrogate pairs, which cut tokens leave and UTF-8 does not have."""
    return text.encode(errors="replace").decode()
