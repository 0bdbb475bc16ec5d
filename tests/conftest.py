"""Fixtures for every test: nothing a test starts may outlive it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest
from child_processes import END_TIMEOUT_S
from filelock import FileLock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores: threads would wait for each other

# no property is about time, which a busy machine takes; the same examples in every run, so that a change is judged by
# what it changes: --hypothesis-profile=default draws others
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")


def _descendants() -> dict[int, str]:
    """The command of every process below this one that runs."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in command:
                found[process.pid] = command
    return found


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a non-daemon thread or an environment variable behind."""
    processes, threads, environment = _descendants(), set(threading.enumerate()), dict(os.environ)
    yield
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        left = {t.name for t in threading.enumerate() if t not in threads and not t.daemon}
        leaked = {pid: command for pid, command in _descendants().items() if pid not in processes}
        if not (left or leaked) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not leaked, f"processes left running: {leaked}"
    assert not left, f"threads left running: {left}"
    environment["PYTEST_CURRENT_TEST"] = os.environ.get("PYTEST_CURRENT_TEST", "")
    changed = {k for k in {*environment, *os.environ} if environment.get(k) != os.environ.get(k)}
    # torch sets these when the first optimizer is built, or when it loads CUDA's libraries
    changed -= {"TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
    assert not changed, f"environment variables changed: {changed}"


@pytest.fixture
def hears_hangups() -> Iterator[None]:
    """SIGHUP as a terminal's programs have it, also where the tests were started with ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, Callable[[Path], None]], Path]:
    """A directory of a name, filled by the first of the parallel workers that wants it; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent

    def made(name: str, fill: Callable[[Path], None]) -> Path:
        directory, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock", timeout=300):
            if not done.exists():
                directory.mkdir(exist_ok=True)
                fill(directory)
                done.touch()
        return directory

    return made
