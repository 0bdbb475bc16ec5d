"""A reward that cannot be set up ends the run before anything is generated."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_lit import hookimpl, recipes
from areal_lit.contracts import Callback
from areal_lit.rewarding import RewardError
from areal_lit_rewards.exact_match import ExactMatch


class Unavailable(ExactMatch):
    """Its verifier is not there."""

    def setup(self) -> None:
        raise FileNotFoundError("verifier.bin")


class Watcher(Callback):
    """Sees whether the run got beyond its start."""

    has_started = False

    @hookimpl
    def fit_start(self) -> None:
        self.has_started = True


@pytest.mark.slow
def test_a_failing_setup_is_told_at_the_start(tmp_path: Path) -> None:
    run = recipes.load("quickstart", overrides=[f"runs_dir={tmp_path}", "max_steps=1"])
    run.reward, run.callbacks = Unavailable(), [watcher := Watcher()]
    with pytest.raises(RewardError, match=r"setup of reward 'default' \(Unavailable\) failed: .*verifier\.bin"):
        run.fit()
    assert not watcher.has_started
