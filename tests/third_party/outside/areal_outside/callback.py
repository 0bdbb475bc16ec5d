"""Tally: counts what happened, in the controller and on ranks."""

from __future__ import annotations

from pathlib import Path

from areal_lit import hookimpl
from areal_lit.contracts import Callback


class Tally(Callback):
    """Write how often each event happened to a file of the run, and a mark from each optimizer step on a rank.

    Args:
        rank_file: appended to by ranks, one line per optimizer step and role.
    """

    def __init__(self, *, rank_file: str) -> None:
        self.rank_file = rank_file
        self.counts = {}

    @hookimpl
    def rollout_finish(self, group):
        self.counts["rollout_finish"] = self.counts.get("rollout_finish", 0) + 1

    @hookimpl
    def step_end(self, step):
        self.counts["step_end"] = step

    @hookimpl
    def weights_synced(self, version):
        self.counts["version"] = version

    @hookimpl
    def before_optimizer_step(self, role):
        with Path(self.rank_file).open("a") as file:
            file.write(f"{role}\n")

    @hookimpl
    def fit_end(self, trainer):
        path = Path(trainer.runs_dir) / trainer.name / "tally.txt"
        path.write_text("".join(f"{name} {count}\n" for name, count in sorted(self.counts.items())))
