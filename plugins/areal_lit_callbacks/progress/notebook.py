"""Notebook: one output of a cell, updated in place."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.picture import picture
from areal_lit_callbacks.progress.screen import Screen
from areal_lit_callbacks.progress.words import GAP

if TYPE_CHECKING:
    from rich.text import Text

NUM_NOTES = 14
HIGHEST_RATE = 1.0
"""Updates a second: each is a message that the notebook's server and its page have to handle."""


class Notebook(Screen):
    """One output of a notebook's cell, updated in place; the last notes stand below the picture."""

    def __init__(self, course: Course, *, per_s: float) -> None:
        self._course = course
        self._interval_s = 1.0 / min(per_s, HIGHEST_RATE)
        self._notes: deque[str] = deque(maxlen=NUM_NOTES)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="areal-lit-progress", daemon=True)
        self._handle: Any = None

    def start(self, starting: str) -> None:
        from IPython.display import display

        self._handle = display(self._text(), display_id=True)
        self._thread.start()

    def step(self) -> None:
        """The picture is updated at its own rate."""

    def note(self, *parts: str) -> None:
        self._notes.append(GAP.join(parts))

    def close(self, summary: Sequence[str]) -> None:
        self._is_over.set()
        self._thread.join()
        self._notes.extend(summary)
        self._handle.update(self._text(is_over=True))

    def _refresh(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self._handle.update(self._text())

    def _text(self, *, is_over: bool = False) -> Text:
        from rich import get_console
        from rich.text import Text

        lines = picture(self._course, get_console().width)
        return Text("\n", no_wrap=True, overflow="ignore").join(
            [*(lines[:-1] if is_over else lines), *map(Text, tuple(self._notes))]
        )
