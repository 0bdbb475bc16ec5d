"""Screen: where a run's course is shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Screen(ABC):
    """Shows one run, from the start of its first process to its end."""

    @abstractmethod
    def start(self, starting: str) -> None:
        """Begin. ``starting`` says what is about to be started."""

    @abstractmethod
    def step(self) -> None:
        """A step is over."""

    @abstractmethod
    def note(self, *parts: str) -> None:
        """Show a line that stays (an evaluation, a checkpoint), with as many of its parts as there is room for."""

    @abstractmethod
    def close(self, summary: Sequence[str]) -> None:
        """End; leave the summary."""


def print_line(console: Console, text: str) -> None:
    """The text as it is, on a line of its own, however long."""
    console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)


def is_terminal(stream: Any) -> bool:
    """Whether a stream, if there is one, leads to a terminal."""
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:  # it is closed
        return False
