"""EventThread: an event loop with a thread of its own, and waits that end when the run fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)

MACHINERY = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(asyncio.__file__).parent}{os.sep}", threading.__file__)
"""Files whose frames say nothing about whose code it is that blocks."""

ANSWER_S = 0.5
"""A thread that does not take a call within this time is blocked."""


class EventThread:
    """Runs coroutines for other threads. After ``fail`` every current and future wait raises that error.

    Args:
        name: of the thread.
        stop_timeout_s: for tasks to end when stopped.
    """

    def __init__(self, name: str, *, stop_timeout_s: float = 10.0) -> None:
        self.name = name
        self.stop_timeout_s = stop_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._failed: Future[None] = Future()
        self._failures: set[str] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    def start(self) -> None:
        """Start the thread; raises RuntimeError when it was started before."""
        if self._thread is not None:
            raise RuntimeError(f"the {self.name} thread was started before; make a new one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self.name, daemon=True)
        self._thread.start()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._is_stopping:
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - SystemExit and its like: whoever waits must know
                self.fail(error)
        loop.close()

    def run(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        timeout_s: float,
        what: str,
        describe: Callable[[], str] | None = None,
        despite_failure: bool = False,
    ) -> T:
        """The coroutine's result, computed on the event loop while this thread waits.

        Raises what the coroutine or ``fail`` raised, or TimeoutError naming ``what`` (and what ``describe`` adds, and
        where the event loop is blocked, if it is).

        Args:
            despite_failure: ``fail`` does not end this wait.
        """
        loop = self._loop
        assert threading.current_thread() is not self._thread, f"{what} would wait for its own thread"
        is_failed = self._failed.done() and not despite_failure
        if is_failed or loop is None or not self._is_alive():
            coroutine.close()
            self._raise_failure()
            raise RuntimeError(f"cannot wait for {what}: the {self.name} thread does not run")
        task: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            waited: list[Future[Any]] = [task] if despite_failure else [task, self._failed]
            at_most_s = min(timeout_s, threading.TIMEOUT_MAX)  # inf is no time that a lock can wait for
            ended = wait(waited, timeout=at_most_s, return_when=FIRST_COMPLETED).done
        finally:
            if not task.done():
                task.cancel()
        if task.cancelled():
            self._raise_failure()
            if task in ended:
                raise RuntimeError(f"the {self.name} thread was stopped while {what} was waited for")
            detail = f"; {describe()}" if describe is not None else ""
            raise TimeoutError(f"waited {timeout_s:g} s for {what}{detail}{self._blocked()}")
        return task.result()

    def _blocked(self) -> str:
        """Which code keeps the event loop from answering anybody; empty while it answers."""
        answered = threading.Event()
        self.post(answered.set)
        assert self._thread is not None
        frame = sys._current_frames().get(self._thread.ident or 0)
        if answered.wait(ANSWER_S) or frame is None:
            return ""
        stack = traceback.extract_stack(frame)
        logger.error("the %s thread is blocked:\n%s", self.name, "".join(traceback.format_list(stack)).rstrip())
        first = next((each for each in stack if not each.filename.startswith(MACHINERY)), stack[-1])
        culprit = next(each for each in reversed(stack) if each.filename == first.filename)
        return (
            f". {culprit.name} in {culprit.filename}, line {culprit.lineno}, blocks the {self.name} thread, on which "
            "everything is async: await there, or run what blocks in a thread (asyncio.to_thread)"
        )

    def post(self, call: Callable[[], None]) -> None:
        """Have the event loop make this call; waits for nothing, so a signal handler may. Nothing after the end."""
        assert self._loop is not None, f"the {self.name} thread was not started"
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that nobody waits for; what it raises ends every wait, as with ``fail``."""
        if self._loop is None or not self._is_alive():
            coroutine.close()
            return
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).add_done_callback(self._hear)

    def _hear(self, task: Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End every current and future wait with this error; the first one counts, others are told once each. For any
        thread."""
        told = f"{type(error).__name__}: {error}"
        with self._lock:
            if not self._failed.done():
                self._failed.set_exception(error)
            elif told not in self._failures:
                logger.warning("after the first failure, another: %s", told)
            self._failures.add(told)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel what runs, run ``last`` on the loop, and end the thread; idempotent."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        ending = asyncio.run_coroutine_threadsafe(self._wind_up(last), loop)
        wait((ending,), timeout=self.stop_timeout_s)
        if not ending.done():
            logger.warning(
                "tasks of the %s thread did not end within %g s of being cancelled", self.name, self.stop_timeout_s
            )
        loop.call_soon_threadsafe(self._end, loop)
        thread.join(self.stop_timeout_s)
        if thread.is_alive():
            logger.warning("the %s thread is blocked and was left behind: something on it does not yield", self.name)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_stopping = True
        loop.stop()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _raise_failure(self) -> None:
        if self._failed.done():
            self._failed.result()

    @staticmethod
    async def _wind_up(last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if last is not None:
            await last()
        await asyncio.get_running_loop().shutdown_asyncgens()
