"""Terminal: a picture that is redrawn in place."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.picture import picture
from areal_lit_callbacks.progress.screen import Screen, is_terminal, print_line
from areal_lit_callbacks.progress.words import fitting

if TYPE_CHECKING:
    from rich.console import Console


class Terminal(Screen):
    """The picture at the bottom of a terminal; all else that is written goes above it, log lines included."""

    def __init__(self, course: Course, console: Console, *, refresh_per_s: float) -> None:
        from rich.console import Group
        from rich.live import Live

        self._console = console
        self._live = Live(
            get_renderable=lambda: Group(*picture(course, console.width)),
            console=console,
            refresh_per_second=refresh_per_s,
            transient=True,
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )
        self._redirections = ExitStack()

    def start(self, starting: str) -> None:
        streams = (sys.stdout, sys.stderr)
        self._live.start()
        self._redirections.enter_context(_handlers_follow(dict(zip(streams, (sys.stdout, sys.stderr), strict=True))))

    def step(self) -> None:
        """The picture is redrawn at its own rate."""

    def note(self, *parts: str) -> None:
        print_line(self._console, fitting(parts, self._console.width))

    def close(self, summary: Sequence[str]) -> None:
        self._redirections.close()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # a line without an end is still held back
        self._live.stop()
        for line in summary:
            print_line(self._console, line)


@contextmanager
def _handlers_follow(replaced: Mapping[Any, Any]) -> Iterator[None]:
    """Log handlers that hold one of these streams write to its replacement instead, for as long as the block runs."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {h: h.stream for each in loggers for h in getattr(each, "handlers", ()) if _writes_to(h, replaced)}
    for handler, stream in handlers.items():
        handler.setStream(replaced[stream])
    try:
        yield
    finally:
        for handler, stream in handlers.items():
            handler.setStream(stream)


def _writes_to(handler: logging.Handler, streams: Mapping[Any, Any]) -> bool:
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is stream for stream in streams)
