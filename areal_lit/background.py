"""Calls that are made while their caller goes on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], *, name: str, niceness: int = 0) -> Future[T]:
    """What the call returns or raises. Its thread is a daemon: one that hangs must not keep the process from ending.

    Args:
        name: of the thread.
        niceness: by how much it gives way to others; on Linux, where a thread has a priority of its own.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            if sys.platform == "linux":
                os.nice(niceness)
            value = call()
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, who gets it from the future
            future.set_exception(error)
        else:
            future.set_result(value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
