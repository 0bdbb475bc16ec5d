"""The event thread: every wait ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from areal_lit.rollout.event_thread import EventThread
from areal_lit.seeds import stable_seed


@pytest.fixture
def thread() -> Iterator[EventThread]:
    started = EventThread("test-events", stop_timeout_s=5)
    started.start()
    yield started
    started.stop()
    assert "test-events" not in [t.name for t in threading.enumerate()]


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_result_and_exception_come_back(thread: EventThread) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    async def broken() -> None:
        raise KeyError("inside")

    assert thread.run(add(1, 2), timeout_s=5, what="a sum") == 3
    assert thread.run(add(1, 2), timeout_s=float("inf"), what="a sum") == 3
    with pytest.raises(KeyError, match="inside"):
        thread.run(broken(), timeout_s=5, what="a failure")


def test_deadline_names_what_was_waited_for_and_ends_it(thread: EventThread) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await forever()
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match=r"waited 0.02 s for the engine; it sleeps"):
        thread.run(wait(), timeout_s=0.02, what="the engine", describe=lambda: "it sleeps")
    assert ended.wait(5)


def test_of_later_failures_each_is_told_once(thread: EventThread, caplog: pytest.LogCaptureFixture) -> None:
    for reason in ("first", "second", "first", "second", "third", "third"):
        thread.fail(OSError(reason))
    assert [record.message.rpartition(" ")[2] for record in caplog.records] == ["second", "third"]
    with pytest.raises(OSError, match="first"):
        thread.run(forever(), timeout_s=5, what="nothing")


def test_failure_ends_current_and_future_waits_and_the_first_counts(thread: EventThread) -> None:
    timer = threading.Timer(0.02, lambda: thread.fail(OSError("first")))
    timer.start()
    with pytest.raises(OSError, match="first"):
        thread.run(forever(), timeout_s=20, what="nothing")
    timer.join()
    thread.fail(OSError("second"))
    with pytest.raises(OSError, match="first"):
        thread.run(forever(), timeout_s=20, what="nothing")


def test_stopping_ends_a_wait_of_another_thread(thread: EventThread) -> None:
    caught: list[BaseException] = []
    waiting = threading.Event()

    async def wait() -> None:
        waiting.set()
        await forever()

    def call() -> None:
        try:
            thread.run(wait(), timeout_s=20, what="a result")
        except RuntimeError as error:
            caught.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waiting.wait(5)
    thread.stop()
    caller.join(5)
    assert "was stopped while a result was waited for" in str(caught[0])


def test_loop_that_is_torn_down_from_inside_ends_the_wait(thread: EventThread) -> None:
    async def leave() -> None:
        asyncio.get_running_loop().call_soon(exit_from_inside)
        await forever()

    def exit_from_inside() -> None:
        raise SystemExit("a workflow called sys.exit")

    with pytest.raises(SystemExit, match=r"sys\.exit"):
        thread.run(leave(), timeout_s=20, what="nothing")


def test_not_started_and_started_twice_are_refused(thread: EventThread) -> None:
    with pytest.raises(RuntimeError, match="does not run"):
        EventThread("other").run(forever(), timeout_s=1, what="anything")
    with pytest.raises(RuntimeError, match="started before"):
        thread.start()


def test_seeds_do_not_depend_on_the_process() -> None:
    assert stable_seed(7, "train", 3, 0) == 3407505641501811318
    seeds = {stable_seed(7, "train", prompt, sample) for prompt in range(50) for sample in range(8)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
