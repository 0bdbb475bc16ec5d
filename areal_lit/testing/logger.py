"""check_logger: the conformance suite of run loggers."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from areal_lit.contracts import RunLogger
from areal_lit.testing.component import check_component, require
from areal_lit.testing.filter import make_group
from areal_lit.types import Example, Group

CONFIG: dict[str, Any] = {
    "name": "check",
    "max_steps": None,
    "loggers": [{"class_path": "my.Logger", "init_args": {"api_key": "***", "rate": 0.5}}],
    "template_kwargs": {},
}
TOKEN = f"hf_{'A1b2C3d4' * 4}"
"""What looks like a secret, for a model to write."""
HOSTILE = {
    "train/nan": float("nan"),
    "train/inf": float("-inf"),
    "train/huge": 1e308,
    "train/int": 3,
    "train/reward@8 (95%)": 0.5,
    "train/größe_温度": 1.0,
    "train/größe_湿度": 2.0,
    f"train/{'long_' * 100}": 1.0,
}


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
    before, threads = _process(), set(threading.enumerate())
    _check_unstarted(check_component(make, "logger"))
    for status in ("finished", "failed", "interrupted"):
        directory = run_dir / status
        directory.mkdir()
        _check_run(make(), directory, status)
        if steps is not None:
            _check_steps(steps(directory), [0, 1, 2, 3, 4], "a run of steps 0 to 4")
    _check_hostile(make(), run_dir / "hostile")
    _check_resume(make, run_dir / "finished", steps)
    _check_empty(make(), run_dir / "empty")
    if any((run_dir / "empty").iterdir()):
        _check_occupied(make(), run_dir / "occupied")
    for what, value in _process().items():
        require(value == before[what], f"close() must put back what the logger changed: {what} is {value}")
    left = sorted(thread.name for thread in set(threading.enumerate()) - threads)
    require(not left, f"close() must end the threads that the logger started: {left}")


def picture() -> bytes:
    """A PNG of one white pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00\xff\xff\xff")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _process() -> dict[str, object]:
    """What a library may change of the process that it is used in."""
    return {
        "the environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "the exception hook": sys.excepthook,
        "the handler of SIGINT": signal.getsignal(signal.SIGINT),
        "the handler of SIGTERM": signal.getsignal(signal.SIGTERM),
    }


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
    path = directory / "picture.png"
    path.write_bytes(picture())
    logger.figure(4, "picture", path)
    model = directory / "checkpoints" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    logger.artifact(4, "model", model)
    logger.close(status)
    for name, drawn in logger.new_figures().items():
        require(logger.draws, f"new_figures() names {name}, so draws must be True: it is closed before those it is for")
        require(drawn.is_file(), f"new_figures() names {name} at {drawn}, where there is no file")
    logger.close(status)


def _metrics(logger: RunLogger, step: int, values: Mapping[str, float]) -> None:
    try:
        logger.metrics(step, MappingProxyType(dict(values)))
    except TypeError as error:
        raise AssertionError(f"metrics() must take any mapping and leave it unchanged: {error}") from error


def _check_hostile(logger: RunLogger, directory: Path) -> None:
    """Numbers, names and texts that a model or a plugin may come up with."""
    directory.mkdir()
    logger.setup(directory, CONFIG, 0)
    try:
        _metrics(logger, 1, {})
        _metrics(logger, 2, HOSTILE)
        logger.samples(2, [_hostile_group(text) for text in ("x" * 10_000, "\ud83d", "\0\x1b[31m", "", TOKEN)])
        logger.samples(3, [])
    except Exception as error:  # whatever a foreign logger raises here is the finding, and is chained
        raise AssertionError(
            f"{type(error).__name__} on names, numbers or texts that runs come up with: {error}; leave them out, "
            "change them or say it in a log, but let the run go on"
        ) from error
    logger.close("finished")
    leaked = [path for path in directory.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    require(
        not leaked, f"a secret in a sample is written to {leaked}; pass texts through areal_lit.secrets.redact_text"
    )


def _hostile_group(text: str) -> Group:
    (trajectory,) = make_group((1.0,)).trajectories
    prompt = replace(trajectory.prompt, example=Example(prompt=({"role": "user", "content": text},)))
    return Group(prompt=prompt, trajectories=(replace(trajectory, prompt=prompt, text=text),))


def _check_resume(
    make: Callable[[], RunLogger], directory: Path, steps: Callable[[Path], Sequence[int]] | None
) -> None:
    """A run that had reached step 4 goes on from its checkpoint of step 2."""
    first = Counter(steps(directory)) if steps is not None else Counter()
    resumed = make()
    resumed.setup(directory, CONFIG, 2)
    for step in (3, 4, 5):
        _metrics(resumed, step, {"rollout/reward": step / 10, "train/new": 1.0})
    resumed.close("finished")
    if steps is not None:
        logged = steps(directory)
        _check_steps(logged, [0, 1, 2, 3, 4, 5], "a run of 4 steps resumed from step 2 up to step 5")
        twice = [step for step, count in Counter(logged).items() if count > max(1, first[step])]
        require(
            not twice, f"after a resume from step 2 the steps {twice} are there twice; drop what lies past the step"
        )


def _check_steps(logged: Sequence[int], expected: Sequence[int], what: str) -> None:
    require(
        list(dict.fromkeys(logged)) == list(expected) and list(logged) == sorted(logged),
        f"{what} must leave the steps {list(expected)}, it left {list(logged)}; on resume drop what lies past the step",
    )


def _check_empty(logger: RunLogger, directory: Path) -> None:
    directory.mkdir()
    logger.setup(directory, {}, 0)
    logger.hurry()
    logger.close("interrupted")


def _check_occupied(logger: RunLogger, path: Path) -> None:
    """A logger that keeps files, where none can be."""
    path.touch()
    try:
        logger.setup(path, CONFIG, 0)
        logger.metrics(1, {"rollout/reward": 0.5})
    except Exception as error:  # noqa: BLE001 - whatever a foreign logger raises here is what is looked at
        require(str(path) in str(error), f"where nothing can be written the error must name the path, got: {error}")
    else:
        raise AssertionError(f"{path} is no directory, and neither setup() nor metrics() said that nothing is kept")
    finally:
        logger.close("failed")
