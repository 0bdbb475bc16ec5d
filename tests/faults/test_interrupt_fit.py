"""Signals to the process group of ``areal-lit fit``, in each phase: it saves, exits as documented, and is gone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from command import checkpoints, end, start


def signals(phase: str, step: int, *names: str) -> dict[str, object]:
    """A callback for the recipe."""
    return {
        "class_path": "signalling.SignalIn",
        "init_args": {"phase": phase, "step": step, "signals": list(names)},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize(
    ("phase", "step", "name", "saved"),
    [
        ("wait_batch", 2, "SIGINT", {2, 3}),
        ("train", 2, "SIGINT", {3}),
        ("sync_weights", 3, "SIGTERM", {3}),
        ("evaluate", 2, "SIGHUP", {2}),
        ("checkpoint", 2, "SIGTERM", {2}),
    ],
)
def test_one_signal_ends_the_step_saves_and_exits(
    tmp_path: Path, phase: str, step: int, name: str, saved: set[int]
) -> None:
    settings = {"evaluation": {"every_steps": 2}, "checkpoint": {"every_steps": 2, "export_hf": False}}
    code, told = end(start(tmp_path, **settings, callbacks=[signals(phase, step, name)]), tmp_path)
    assert code == 130, told
    assert checkpoints(tmp_path)[-1] in saved
    assert f"interrupted at step {checkpoints(tmp_path)[-1]}; go on with --resume auto" in told
    if phase == "train":
        code, told = end(start(tmp_path, "--resume", "auto", **settings), tmp_path)
        assert code == 0, told
        lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
        prompts = {(line["step"], line["prompt_id"]) for line in lines}
        assert Counter(step for step, _ in prompts) == dict.fromkeys(range(1, 5), 4)
        assert len({prompt for _, prompt in prompts}) == 16, "a prompt was trained twice"


@pytest.mark.slow
def test_two_signals_end_it_at_once(tmp_path: Path) -> None:
    code, told = end(start(tmp_path, callbacks=[signals("train", 2, "SIGINT", "SIGINT")]), tmp_path)
    assert code == 130, told
    assert checkpoints(tmp_path) == []
    assert "stopped at step 2 without saving; there is no checkpoint to go on from: begin anew (--over" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_signal_while_it_starts_ends_it_at_once(tmp_path: Path) -> None:
    code, told = end(start(tmp_path, data={"class_path": "signalling.SignalAtStart"}), tmp_path)
    assert (code, told) == (130, "interrupted\n")
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.slow
def test_a_signal_in_the_last_save_changes_nothing(tmp_path: Path) -> None:
    code, told = end(start(tmp_path, callbacks=[signals("checkpoint", 4, "SIGINT")]), tmp_path)
    assert code == 0, told
    assert checkpoints(tmp_path) == [4]
