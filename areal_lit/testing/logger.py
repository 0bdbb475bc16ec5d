"""check_logger: the conformance suite of run loggers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from areal_lit.contracts import RunLogger
from areal_lit.testing.component import check_component, require
from areal_lit.testing.filter import make_group

SECRET = "a-secret-that-belongs-nowhere"
CONFIG = {"name": "check", "loggers": [{"init_args": {"api_key": SECRET}}]}
PNG = b"\x89PNG\r\n\x1a\n"


def check_logger(
    make: Callable[[], RunLogger], run_dir: Path, *, steps: Callable[[Path], Sequence[int]] | None = None
) -> None:
    """Raise AssertionError unless the logger survives every way in which a run starts, reports and ends.

    ::

        def test_logger(tmp_path):
            check_logger(MyLogger, tmp_path, steps=lambda run_dir: read_steps(run_dir / "my.csv"))

    Args:
        make: constructs the logger.
        run_dir: an empty directory.
        steps: reads the logged steps back from a run's directory; with it, resuming is checked too.
    """
    threads = set(threading.enumerate())
    _check_unstarted(check_component(make, "logger"))
    for status in ("finished", "failed", "interrupted"):
        directory = run_dir / status
        directory.mkdir()
        _check_run(make(), directory, status)
        _check_secret(directory)
        if steps is not None:
            _check_steps(steps(directory), [0, 1, 2, 3, 4], "a run of steps 0 to 4")
    _check_resume(make, run_dir / "finished", steps)
    _check_empty(make(), run_dir / "empty")
    left = {thread.name for thread in set(threading.enumerate()) - threads}
    require(not left, f"close() must end what the logger started; these threads are left: {sorted(left)}")


def _check_unstarted(logger: RunLogger) -> None:
    try:
        logger.close("failed")
    except Exception as error:  # whatever a foreign logger raises here is the finding, and is chained
        raise AssertionError(
            f"close() before setup raised {type(error).__name__}: {error}; a run that fails while starting calls it too"
        ) from error


def _check_run(logger: RunLogger, directory: Path, status: str) -> None:
    """Metrics that come late, go away and are not finite; an evaluation of the same step; odd groups."""
    logger.setup(directory, CONFIG, 0)
    _metrics(logger, 0, {"eval/test/reward": 0.25})
    for step in range(1, 5):
        values = {"rollout/reward": step / 10, "train/loss": float("nan") if step == 2 else -0.5}
        if step >= 2:
            values["train/grad_norm"] = float("inf") if step == 3 else 1.5
        if step == 3:
            del values["train/loss"]
        _metrics(logger, step, values)
        logger.samples(step, [make_group((0.0, 1.0)), make_group((None, 0.5)), make_group(())])
        if step % 2 == 0:
            _metrics(logger, step, {"eval/test/reward": 0.5})
    picture = directory / "picture.png"
    picture.write_bytes(PNG)
    logger.figure(4, "picture", picture)
    logger.close(status)
    logger.close(status)


def _metrics(logger: RunLogger, step: int, values: Mapping[str, float]) -> None:
    try:
        logger.metrics(step, MappingProxyType(dict(values)))
    except TypeError as error:
        raise AssertionError(f"metrics() must take any mapping and leave it unchanged: {error}") from error


def _check_secret(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file() and SECRET.encode() in path.read_bytes():
            raise AssertionError(f"{path.name} holds the config's api_key; log no values whose key names a secret")


def _check_resume(
    make: Callable[[], RunLogger], directory: Path, steps: Callable[[Path], Sequence[int]] | None
) -> None:
    """A run that had reached step 4 goes on from its checkpoint of step 2."""
    resumed = make()
    resumed.setup(directory, CONFIG, 2)
    for step in (3, 4, 5):
        _metrics(resumed, step, {"rollout/reward": step / 10, "train/new": 1.0})
    resumed.close("finished")
    if steps is not None:
        _check_steps(steps(directory), [0, 1, 2, 3, 4, 5], "a run of 4 steps resumed from step 2 up to step 5")


def _check_steps(logged: Sequence[int], expected: Sequence[int], what: str) -> None:
    require(
        list(dict.fromkeys(logged)) == list(expected) and list(logged) == sorted(logged),
        f"{what} must leave the steps {list(expected)}, it left {list(logged)}; on resume drop what lies past the step",
    )


def _check_empty(logger: RunLogger, directory: Path) -> None:
    directory.mkdir()
    logger.setup(directory, {}, 0)
    logger.close("failed")
