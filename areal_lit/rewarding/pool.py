"""The thread that feeds reward workers, kills the hung ones and replaces the dead.

Each worker has a pipe of its own, so one that dies in the middle of a message harms no other. The clock of a call
is a counter of begun calls in shared memory: it starts when the call starts, not when its batch is sent, and it
tells which call of the batch to blame when the worker is killed or dies. The others of the batch are run again.

``pebble.ProcessPool`` was not taken: it times a whole task, so a batch would need a clock per call anyway; its
workers share one pipe; an idle worker's death breaks the pool, and ``os._exit(0)`` in a task goes unnoticed.
"""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path

from areal_lit.rewarding.calls import Outcome, describe
from areal_lit.rewarding.metrics import RewardCounters
from areal_lit.rewarding.processes import Worker
from areal_lit.rewarding.settings import Rewarding
from areal_lit.rewarding.slot import Job, Slot

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
MAX_FAILED_STARTS = 3
EXIT_CODE_TIMEOUT_S = 1.0
TICK_S = 0.05


class RewardPool:
    """Runs jobs on workers; each comes back through ``deliver`` exactly once, failed or not.

    Args:
        settings: all but ``on_failure`` is used.
        start_worker: makes one worker; called on the pool's thread, so that the kernel ties the worker to it.
        deliver: receives finished jobs with one outcome per trajectory, on the pool's thread.
        log_path: of the workers' output, to be named in errors; None if they have none.
    """

    def __init__(
        self,
        settings: Rewarding,
        *,
        start_worker: Callable[[], Worker],
        deliver: Callable[[list[tuple[Job, list[Outcome]]]], None],
        counters: RewardCounters,
        log_path: Path | None,
    ) -> None:
        self._settings = settings
        self._start_worker = start_worker
        self._deliver = deliver
        self._counters = counters
        self._log_path = log_path
        self._kills_in_row = 0
        self._slots: list[Slot] = []
        self._queue: deque[Job] = deque()
        self._results: list[tuple[Job, list[Outcome]]] = []
        self._failed_starts = 0
        self._failure = ""
        self._lock = threading.Lock()
        self._is_stopping = False
        self._is_settled = threading.Event()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="reward-pool", daemon=True)

    def start(self) -> None:
        """Start the thread; workers start in the background."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Return once a worker takes calls. Raises RuntimeError when setup failed, TimeoutError past the deadline."""
        if not self._is_settled.wait(timeout_s):
            raise TimeoutError(f"no reward worker was ready within {timeout_s} s; its output is in {self._log_path}")
        if self._failure:
            raise RuntimeError(self._failure)

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queue jobs; from any thread. After a failure or stop they come back as ``stopped`` at once."""
        with self._lock:
            if not self._failure:
                self._queue.extend(jobs)
                jobs = ()
        self._wake()
        if rejected := [(job, self._stopped(job)) for job in jobs]:
            self._deliver(rejected)

    def stop(self) -> None:
        """Kill the workers and end the thread. Raises RuntimeError if that takes unreasonably long."""
        self._is_stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(timeout=10.0 + 10.0 * self._settings.num_workers)
            if self._thread.is_alive():
                raise RuntimeError(f"the reward pool did not stop; workers' output is in {self._log_path}")
        self._wake_read.close()
        self._wake_write.close()

    def _wake(self) -> None:
        try:
            self._wake_write.send(b"w")
        except (BlockingIOError, OSError):
            # Full: a wake-up is on its way already. Closed: stopped, and nobody waits.
            return

    def _run(self) -> None:
        failure = "the reward pool was stopped"
        try:
            while not self._is_stopping:
                self._step()
        # The supervisor's own failure: nobody else would answer the waiting calls, so they all get it.
        except Exception as error:  # noqa: BLE001
            failure = str(error) if isinstance(error, RuntimeError | TimeoutError) else describe(error)
        finally:
            self._shut_down(failure)

    def _step(self) -> None:
        while len(self._slots) < self._settings.num_workers:
            self._slots.append(Slot(self._start_worker()))
        self._assign()
        busy = any(slot.jobs or not slot.is_ready for slot in self._slots)
        wait([self._wake_read, *(slot.worker.connection for slot in self._slots)], timeout=TICK_S if busy else 1.0)
        if wait([self._wake_read], timeout=0):
            self._wake_read.recv(4096)
        for slot in list(self._slots):
            code = slot.worker.exit_code()
            is_open = self._receive(slot)
            if code is not None or not is_open:
                self._bury(slot)
            else:
                self._check_clock(slot)
        self._flush()

    def _assign(self) -> None:
        for slot in list(self._slots):
            with self._lock:
                if not self._queue:
                    return
                if not slot.is_ready or slot.jobs:
                    continue
                size = min(self._settings.batch_size, -(-len(self._queue) // self._settings.num_workers))
                batch = [self._queue.popleft() for _ in range(size)]
            self._send(slot, batch)

    def _send(self, slot: Slot, batch: list[Job]) -> None:
        try:
            slot.give(batch)
        except OSError:
            # It died, or stopped reading in the middle of the message. No call began, so none is to blame.
            self._requeue(batch)
            self._replace(slot, "crash", "the reward worker takes no calls")
        # Pickling runs code of whatever classes an example's fields hold. The culprits are counted as errors.
        except Exception:  # noqa: BLE001
            self._requeue([job for job in batch if self._can_travel(job)])

    def _can_travel(self, job: Job) -> bool:
        try:
            pickle.dumps(job.item)
        # As in _send; the call is unscored with this reason.
        except Exception as error:  # noqa: BLE001
            self._fail(job, "error", f"the example cannot be sent to a reward worker: {describe(error)}")
            return False
        return True

    def _receive(self, slot: Slot) -> bool:
        """Take what the worker reported; False once its pipe is closed."""
        try:
            while slot.worker.connection.poll():
                kind, *content = slot.worker.connection.recv()
                if kind == "ready":
                    slot.is_ready = True
                    self._failed_starts = 0
                    self._is_settled.set()
                elif kind == "failed":
                    raise RuntimeError(content[0])
                elif kind == "unreadable":
                    for job in slot.jobs:
                        self._fail(job, "error", f"the reward worker could not read the example: {content[0]}")
                    slot.jobs.clear()
                else:
                    self._take(slot, *content)
        except (EOFError, OSError):
            return False
        return True

    def _take(self, slot: Slot, results: list[list[Outcome]], seconds: float) -> None:
        slot.answered += len(results)
        self._kills_in_row = 0
        self._counters.add_calls(len(results), seconds)
        for outcomes in results:
            job = slot.jobs.popleft()
            if any(outcome.kind for outcome in outcomes):
                self._retry_or_finish(job, outcomes)
            else:
                self._results.append((job, outcomes))

    def _check_clock(self, slot: Slot) -> None:
        busy_s = slot.busy_s()
        if not slot.is_ready:
            if busy_s > START_TIMEOUT_S:
                raise TimeoutError(f"a reward worker was not ready within {START_TIMEOUT_S} s; see {self._log_path}")
        elif slot.jobs and busy_s > self._settings.timeout_s:
            self._counters.add_killed_worker()
            self._replace(slot, "timeout", f"no result within {self._settings.timeout_s} s")

    def _bury(self, slot: Slot) -> None:
        code = slot.worker.exit_code(EXIT_CODE_TIMEOUT_S)
        if not slot.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise RuntimeError(
                    f"{MAX_FAILED_STARTS} reward workers in a row died at start, the last with exit code {code}; "
                    f"see {self._log_path}"
                )
        ending = "closed its pipe" if code is None else f"died with exit code {code}"
        self._replace(slot, "crash", f"the reward worker {ending}; see {self._log_path}")

    def _replace(self, slot: Slot, kind: str, reason: str) -> None:
        """Kill the worker; the call it was in is to blame, the rest of its batch runs again."""
        slot.worker.kill()
        self._slots.remove(slot)
        if slot.jobs:
            job = slot.pop_blamed()
            self._fail(job, kind, reason)
            self._requeue(slot.jobs)
            self._note_kill(job, kind, reason)

    def _note_kill(self, job: Job, kind: str, reason: str) -> None:
        """Tell the first of a row, as such calls are slow to show in numbers; raise when there are only such."""
        self._kills_in_row += 1
        if self._kills_in_row >= self._settings.max_kills_in_row:
            raise RuntimeError(
                f"{self._kills_in_row} calls of rewards in a row hung or ended their worker, the last of reward "
                f"{job.item.key!r} ({kind}: {reason}); mend it, raise rewarding.timeout_s, or raise "
                "rewarding.max_kills_in_row"
            )
        if self._kills_in_row == 1:
            logger.warning(
                "a call of reward %r had its worker replaced (%s: %s); rewarding.timeout_s is %g",
                job.item.key, kind, reason, self._settings.timeout_s,
            )  # fmt: skip

    def _requeue(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            self._queue.extendleft(reversed(list(jobs)))
        self._wake()

    def _fail(self, job: Job, kind: str, reason: str) -> None:
        self._retry_or_finish(job, [Outcome(kind=kind, reason=reason)] * len(job.item.trajectories))

    def _retry_or_finish(self, job: Job, outcomes: list[Outcome]) -> None:
        if job.attempt >= self._settings.max_attempts:
            self._results.append((job, outcomes))
            return
        job.attempt += 1
        self._counters.add_retry()
        with self._lock:
            self._queue.append(job)

    def _flush(self) -> None:
        if self._results:
            results, self._results = self._results, []
            self._deliver(results)

    def _stopped(self, job: Job) -> list[Outcome]:
        return [Outcome(kind="stopped", reason=self._failure)] * len(job.item.trajectories)

    def _shut_down(self, failure: str) -> None:
        with self._lock:
            self._failure = failure
            left = [*self._queue, *(job for slot in self._slots for job in slot.jobs)]
            self._queue.clear()
        self._is_settled.set()
        self._results.extend((job, self._stopped(job)) for job in left)
        self._flush()
        with ExitStack() as kills:
            for slot in self._slots:
                kills.callback(slot.worker.kill)
        self._slots.clear()
