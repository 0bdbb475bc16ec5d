"""SIGKILL for each kind of process in each phase: the run ends or goes on as it should, and nothing is lost.

These are pairs of all phases and victims; ``benchmarks/kill_matrix.py`` runs every cell.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_cells import PHASES, VICTIMS, attempt, check_cell, check_goes_on, check_nothing_lost

CELLS = (
    ("wait_batch", "engine"),
    ("wait_batch", "controller"),
    ("prepare", "reward"),
    ("train", "rank"),
    ("train", "engine"),
    ("sync_weights", "engine"),
    ("sync_weights", "controller"),
    ("evaluate", "fork_server"),
    ("evaluate", "controller"),
    ("checkpoint", "rank"),
    ("writing", "controller"),
)


def test_each_phase_and_victim_is_among_the_cells() -> None:
    assert {phase for phase, _ in CELLS} == set(PHASES)
    assert {victim for _, victim in CELLS} == set(VICTIMS)


@pytest.mark.slow
def test_an_uninterrupted_run_trains_every_prompt_once_an_epoch(tmp_path: Path) -> None:
    end = attempt(tmp_path)
    assert (end.code, end.raised, end.left) == (0, "", [])
    check_nothing_lost(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "victim"), CELLS)
def test_a_kill_ends_what_it_must_and_loses_nothing(tmp_path: Path, phase: str, victim: str) -> None:
    check_cell(tmp_path, phase, victim)


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_leaves_it_out_and_one_in_the_resume_changes_nothing(
    tmp_path: Path,
) -> None:
    assert attempt(tmp_path, "writing", 4, "controller", 0).code == -9
    checkpoints = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert checkpoints == {"step-00000002", ".partial-step-00000004"}
    assert attempt(tmp_path, "loading", 2, "controller", 0).code == -9
    check_goes_on(tmp_path, 2)
    check_nothing_lost(tmp_path)
