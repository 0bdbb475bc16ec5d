"""What training on data exactly k versions old costs each objective, and what really asynchronous data cost.

    python benchmarks/staleness.py [--jobs 2] [--cells FILE] [--plot FILE]

A cell is a run of ``quickstart_inline`` with an objective, a lag and a seed. ``Lockstep`` lets rollouts run exactly
``lag`` steps ahead: step s trains on what version max(0, s - lag) drew, and the version of every loss token is compared
with that. The learning curve is the mean reward of the samples that each version drew: what the policy is worth after
so many steps, however old the data it learned from. ``staleness_report.py`` says what areas are.

Asynchronous cells are ``quickstart``, in processes of its own, with ``max_staleness`` as the lag. Cells that FILE has
are not run again, so a long measurement can be made in pieces.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from staleness_report import WATCHED, Cell, Result, read, report

from areal_lit import Trainer, hookimpl, recipes
from areal_lit.contracts import Callback
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Group

LAGS = (0, 1, 2, 4, 8, 16)
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    "naive": {"class_path": "grpo", "init_args": {"decoupled": False, "old": "behaviour"}},
    "decoupled": {"class_path": "grpo", "init_args": {"decoupled": True, "old": "proximal"}},
    "m2po": {"class_path": "m2po"},
    "m2po_all": {"class_path": "m2po", "init_args": {"among": "all"}},
    "icepop": {"class_path": "icepop"},
}
ASYNCHRONOUS = ("decoupled", 8)
NUM_MINIBATCHES = 2
TIMEOUT_S = 300.0


class Lockstep(Callback):
    """Trains a step on data exactly ``lag`` versions old, and less only in the first steps, which have version 0's.

    Wants ``max_staleness`` equal to ``lag`` and a sync after each step. Then version v may draw all steps up to
    ``v + lag``, and no step goes on before that is drawn. So nothing runs while weights change, groups are ready in
    the order of their versions, and the oldest of ``lag + 1`` steps is taken.

    Args:
        groups_per_step: of the rollouts.
        lag: steps that rollouts are ahead.
    """

    def __init__(self, *, groups_per_step: int, lag: int) -> None:
        self.groups_per_step = groups_per_step
        self.lag = lag
        self._num_ready = 0
        self._changed = threading.Condition()

    @hookimpl
    def group_ready(self) -> None:
        with self._changed:
            self._num_ready += 1
            self._changed.notify_all()

    @hookimpl
    def phase(self, name: str, step: int) -> AbstractContextManager[None] | None:
        return self._until_drawn((step + self.lag + 1) * self.groups_per_step) if name == "wait_batch" else None

    @contextmanager
    def _until_drawn(self, wanted: int) -> Iterator[None]:
        yield
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_ready >= wanted, TIMEOUT_S):
                raise TimeoutError(f"{self._num_ready} of {wanted} groups were drawn within {TIMEOUT_S:g} s")


class Record(Callback):
    """What a run's versions drew and its steps trained on.

    ``rewards``: of the samples of each version (that of their oldest token). ``lags``: of each step, loss tokens by how
    many versions they were old. ``watched``: of each step, some of its metrics.
    """

    def __init__(self) -> None:
        self.rewards: defaultdict[int, list[float]] = defaultdict(list)
        self.lags: list[Counter[int]] = []
        self.watched: defaultdict[str, list[float]] = defaultdict(list)

    @hookimpl
    def group_ready(self, group: Group) -> None:
        for trajectory in group.trajectories:
            assert trajectory.oldest_version is not None
            assert trajectory.reward is not None
            self.rewards[trajectory.oldest_version].append(trajectory.reward)

    @hookimpl
    def batch_ready(self, batch: TokenBatch, step: int) -> None:
        self.lags.append(Counter((step - batch["version"][batch["loss_mask"]]).tolist()))

    @hookimpl
    def step_end(self, metrics: Mapping[str, float]) -> None:
        for name in WATCHED:
            if name in metrics:
                self.watched[name].append(metrics[name])

    def curve(self, num_versions: int) -> list[float]:
        """Mean reward of each version; one that drew nothing, as may happen asynchronously, is as the one before it."""
        means: list[float] = []
        for version in range(num_versions):
            means.append(statistics.fmean(self.rewards[version] or means[-1:]))
        return means


def trainer_of(cell: Cell, runs_dir: str) -> Trainer:
    """The quickstart with a cell's objective and lag, and a learning rate that does not fall."""
    return recipes.load(
        "quickstart" if cell.is_asynchronous else "quickstart_inline",
        {
            "algorithm": OBJECTIVES[cell.objective],
            "policy": {"optimizer": {"init_args": {"lr": cell.lr, "schedule": "constant"}}},
            "rollout": {"max_staleness": cell.lag},
            "num_minibatches": NUM_MINIBATCHES, "max_steps": cell.steps, "seed": cell.seed,
            "checkpoint": {"at_end": False}, "loggers": [], "callbacks": [], "runs_dir": runs_dir,
        },
    )  # fmt: skip


def measure(cell: Cell) -> Result:
    """Run a cell. Raises ValueError where a step trained on data of another age than it should."""
    record = Record()
    with tempfile.TemporaryDirectory() as directory:
        trainer = trainer_of(cell, directory)
        lockstep = Lockstep(groups_per_step=trainer.rollout.groups_per_step, lag=cell.lag)
        trainer.callbacks = [record] if cell.is_asynchronous else [record, lockstep]
        start = time.monotonic()
        trainer.fit()
        seconds = time.monotonic() - start
    ages = [set(lags) for lags in record.lags]
    if not cell.is_asynchronous and ages != [{min(step, cell.lag)} for step in range(cell.steps)]:
        raise ValueError(f"steps of {cell} trained on data of these ages: {ages}")
    lags = sum(record.lags[cell.lag :], Counter[int]())
    return Result(
        cell=cell,
        seconds=seconds,
        rewards=record.curve(cell.steps),
        lags={str(lag): lags[lag] for lag in sorted(lags)},
        watched={name: statistics.fmean(values) for name, values in record.watched.items()},
    )


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Every cell that is asked for, asynchronous ones last."""
    common = {"lr": options.lr, "steps": options.steps}
    exact = [
        Cell(objective=objective, lag=lag, seed=seed, **common)
        for seed, lag, objective in product(options.seeds, options.lags, options.objectives)
    ]
    objective, lag = ASYNCHRONOUS
    return exact + [Cell(objective=objective, lag=lag, seed=s, is_asynchronous=True, **common) for s in options.seeds]


def run(cells: Sequence[Cell], path: Path, jobs: int) -> None:
    """Append what the file lacks to it, each result as soon as it is there."""
    known = read(path)
    missing = [cell for cell in cells if cell not in known]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, future in enumerate(as_completed([pool.submit(measure, cell) for cell in missing]), 1):
            result = future.result()
            with path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(f"{number} of {len(missing)}: {result.cell}, area {result.area:.3f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="cells at once, one core each")
    parser.add_argument("--cells", type=Path, default=Path("runs/staleness.jsonl"), help="results, added to")
    parser.add_argument("--plot", type=Path, default=Path("runs/staleness.png"))
    parser.add_argument("--objectives", nargs="+", choices=list(OBJECTIVES), default=["naive", "decoupled", "m2po"])
    parser.add_argument("--lags", nargs="+", type=int, default=LAGS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    for path in (options.cells, options.plot):
        path.parent.mkdir(parents=True, exist_ok=True)
    cells = cells_of(options)
    run(cells, options.cells, options.jobs)
    results = read(options.cells)
    report([results[cell] for cell in cells], options.plot)


if __name__ == "__main__":
    main()
