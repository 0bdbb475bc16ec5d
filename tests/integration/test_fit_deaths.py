"""Whole runs that lose a process, are interrupted, or meet a hook that raises."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from acting_callbacks import AtStep
from child_processes import children_called
from fit_runs import rows, samples, trainer

from areal_lit import hookimpl
from areal_lit.contracts import Callback, Death, ProcessDied
from areal_lit.logs import Logs
from areal_lit.weight_sync import WeightSyncError
from areal_lit_launchers.inline import Inline


def kill(name: str, number: int) -> None:
    """Send a signal to the rank or engine of this name."""
    (child,) = children_called(name)
    child.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "hang_timeout_s", "says"),
    [
        ("policy-0", signal.SIGKILL, 60, "policy rank 0 was killed"),
        ("engine-0", signal.SIGKILL, 60, "engine-0 rank 0 was killed"),
        ("policy-0", signal.SIGSTOP, 6, "policy rank 0 gave no sign of life"),
    ],
)
def test_a_dead_or_hung_process_ends_the_run(
    tmp_path: Path, name: str, number: int, hang_timeout_s: int, says: str
) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=2000", f"launcher.init_args.hang_timeout_s={hang_timeout_s}")
    run.callbacks = [AtStep(3, lambda: kill(name, number))]
    with pytest.raises(ProcessDied, match=says):
        run.fit()


class Dying(Inline):
    """Learns of a death only after the loop has met its consequence."""

    def setup(self, log_dir: Path, on_death: Callable[[Death], None], logs: Logs) -> None:
        super().setup(log_dir, on_death, logs)
        self.on_death = on_death

    def break_with(self, error: Exception) -> None:
        death = Death(name="engine-0", rank=0, exit_code=-9, reason="ended", log_tail="out of memory")
        threading.Timer(0.3, self.on_death, [death]).start()
        raise error


@pytest.mark.slow
@pytest.mark.parametrize("error", [WeightSyncError("connection lost"), ConnectionResetError("connection lost")])
def test_a_death_is_the_headline_though_a_connection_broke_first(tmp_path: Path, error: Exception) -> None:
    run = trainer("quickstart_inline", tmp_path, "max_steps=2")
    run.launcher = launcher = Dying()
    run.callbacks = [AtStep(1, lambda: launcher.break_with(error))]
    with pytest.raises(ProcessDied, match=r"^engine-0 rank 0 ended, exit code -9\n(.*\n)*out of memory"):
        run.fit()


@pytest.mark.slow
def test_an_interrupted_run_finishes_its_step_saves_and_resumes(tmp_path: Path) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=2000")
    run.callbacks = [AtStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM))]
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert (tmp_path / "quickstart" / "checkpoints" / "step-00000004" / "complete.json").exists()
    again = trainer("quickstart", tmp_path, "max_steps=6").fit(resume="auto")
    assert [row["step"] for row in rows(again)] == [str(step) for step in range(1, 7)]


class WhileWaiting(Callback):
    """SIGTERM while the loop waits for the groups of a step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.is_waiting = False

    @hookimpl
    def phase(self, name: str, step: int) -> AbstractContextManager[None]:
        return self.watched(is_waiting=(name, step) == ("wait_batch", self.step))

    @contextmanager
    def watched(self, *, is_waiting: bool) -> Iterator[None]:
        self.is_waiting = is_waiting
        yield

    @hookimpl
    def group_ready(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_while_waiting_loses_and_repeats_no_prompt(tmp_path: Path) -> None:
    options = ("data.init_args.num_examples=20", "rollout.num_epochs=1", "rollout.max_staleness=0",
               "loggers=[{class_path: csv}, {class_path: samples, init_args: {groups_per_step: 4}}]")  # fmt: skip
    run = trainer("quickstart_inline", tmp_path, *options, "max_steps=null")
    run.callbacks = [WhileWaiting(2)]
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted at step [23]; go on with --resume auto, fit"):
        run.fit()
    assert run.step in (2, 3), "the step's groups were either all left or all trained on"
    path = trainer("quickstart_inline", tmp_path, *options, "max_steps=null").fit(resume="auto")
    trained = [(s["step"], s["prompt_id"]) for s in samples(path)]
    assert sorted({prompt_id for _, prompt_id in trained}) == list(range(20))
    assert len(set(trained)) == 20
    assert [row["step"] for row in rows(path)] == ["1", "2", "3", "4", "5"]


@pytest.mark.slow
def test_a_failing_hook_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    run = trainer("quickstart_inline", tmp_path, "max_steps=5")
    run.callbacks = [AtStep(2, fail)]
    with pytest.raises(RuntimeError, match=r"step_end.*AtStep.*boom"):
        run.fit()
    assert threading.active_count() < 50
