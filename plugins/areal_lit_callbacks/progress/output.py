"""Output: a text stream for what is only shown. It can break, be full or be closed, and nothing else notices."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TextIO

logger = logging.getLogger("areal_lit.progress")


class Output:
    """Writes to a stream until that fails, says so once in the log, and from then on drops what it is given.

    Args:
        stream: the rest of its methods are this one's.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_lost = False

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, call: Callable[[], object]) -> None:
        if self._is_lost:
            return
        try:
            call()
        except (OSError, ValueError) as error:  # a ValueError is how a closed stream refuses
            self._is_lost = True
            logger.warning("nothing more is shown, the run goes on: %s: %s", type(error).__name__, error)
            self._discard()

    def _discard(self) -> None:
        """Let what the stream still holds, and what others print to it, go nowhere instead of failing them."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):
            return
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
