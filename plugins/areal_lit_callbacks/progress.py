"""How a run is doing, on the terminal: a live picture, or plain lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO, cast

from areal_lit import hookimpl
from areal_lit.contracts import Callback
from areal_lit.validation import roles

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from areal_lit.hookspecs import PhaseName
    from areal_lit.trainer import Trainer

WAITS = {
    "wait_batch": "waiting for rollouts",
    "prepare": "preparing the batch",
    "train": "training",
    "sync_weights": "handing over weights",
    "evaluate": "evaluating",
    "checkpoint": "saving a checkpoint",
}
SHORT = {"wait_batch": "wait", "sync_weights": "sync", "evaluate": "eval", "checkpoint": "save"}
BARS = "▁▂▃▄▅▆▇█"
LABEL_WIDTH = 10


class Progress(Callback):
    """Shows step, reward, staleness, lengths, speed, where the time goes and what is being waited for.

    Args:
        every_s: without a terminal, print a line at most this often (and for the first and last step).
        refresh_per_s: how often the live picture is drawn anew.
    """

    def __init__(self, *, every_s: float = 5.0, refresh_per_s: float = 4.0) -> None:
        if every_s < 0 or not refresh_per_s > 0:
            raise ValueError(f"every_s must be >= 0 and refresh_per_s > 0, got {every_s} and {refresh_per_s}")
        self.every_s = every_s
        self.refresh_per_s = refresh_per_s
        self._console: Console | None = None
        self._live: Live | None = None
        self._history: list[float] = []
        self._metrics: Mapping[str, float] = {}
        self._evaluation = ""
        self._phase = ("starting", time.monotonic())
        self._printed_step = -1
        self._next_line_s = 0.0

    def console(self) -> Console:
        """Where to write; stdout, unless a subclass says otherwise."""
        from rich.console import Console

        from areal_lit_callbacks.output import Output

        return Console(file=cast("TextIO", Output(sys.stdout)) if sys.stdout else None)

    # --- hooks -----------------------------------------------------------------------------------

    @hookimpl
    def configure(self, trainer: Trainer) -> None:
        self._console = self.console()
        if not self._console.is_terminal:
            parts = [*roles(trainer), *([] if trainer.algorithm.offline else ["engine", "rewards"])]
            self._line(f"{trainer.name}: starting {', '.join(parts)}")

    @hookimpl
    def fit_start(self, trainer: Trainer) -> None:
        self._console = self._console or self.console()
        self._start_s = time.monotonic()
        self._first_step = self._step = trainer.step
        self._num_steps = trainer.max_steps
        self._name = trainer.name
        self._phase = ("running", time.monotonic())
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(get_renderable=self.picture, console=self._console, refresh_per_second=self.refresh_per_s)
            self._live.start()
        else:
            self._line(f"{self._name}: from step {trainer.step} of {self._num_steps or 'as many as the data gives'}")

    @hookimpl
    def phase(self, name: PhaseName) -> AbstractContextManager[object]:
        return self._during(name)

    @hookimpl
    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._metrics = dict(metrics)
        value = _first(metrics, "rollout/reward", "train/loss")
        if value is not None and math.isfinite(value):
            self._history.append(value)
        if self._live is None and (self._printed_step < 0 or time.monotonic() >= self._next_line_s):
            self._print_step()

    @hookimpl
    def evaluate_end(self, step: int, metrics: Mapping[str, float]) -> None:
        shown = [(name, value) for name, value in metrics.items() if name.endswith(("/reward", "/loss", "/pass@1"))]
        self._evaluation = "  ".join(f"{name.removeprefix('eval/')} {value:.3f}" for name, value in shown)
        self._evaluation = f"{self._evaluation or 'done'} (step {step})"
        if self._live is None:
            self._line(f"evaluation {self._evaluation}")

    @hookimpl
    def fit_end(self, status: str) -> None:
        if self._console is None or self._phase[0] == "starting":
            return
        if self._live is not None:
            self._phase = (status, time.monotonic())
            self._live.stop()
            self._live = None
        elif self._printed_step != self._step > self._first_step:
            self._print_step()
        if status != "interrupted":  # the interrupt itself says so, and how to go on
            self._line(f"{self._name}: {status} at step {self._step} after {clock(time.monotonic() - self._start_s)}")

    # --- plain lines -----------------------------------------------------------------------------

    def _print_step(self) -> None:
        self._printed_step = self._step
        self._next_line_s = time.monotonic() + self.every_s
        left = self._seconds_left()
        parts = [f"step {self._count()}", *self._numbers(), *([] if left is None else [f"{clock(left)} left"])]
        self._line("  ".join(parts))

    def _line(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def _numbers(self) -> list[str]:
        metrics = self._metrics
        numbers = []
        for label, digits, keys in (
            ("reward", 3, ("rollout/reward",)),
            ("loss", 4, ("train/loss",) if "rollout/reward" not in metrics else ()),
            ("stale", 1, ("rollout/staleness",)),
            ("length", 1, ("rollout/length",)),
        ):
            value = _first(metrics, *keys)
            if value is not None:
                numbers.append(f"{label} {value:.{digits}f}")
        speed = tokens_per_s(metrics)
        return numbers if speed is None else [*numbers, f"{speed:,.0f} tok/s"]

    # --- the live picture ------------------------------------------------------------------------

    def picture(self) -> Group:
        """All lines of the display, cut to the console's width. Called from the display's own thread."""
        from rich.console import Group

        assert self._console is not None
        width = self._console.width
        now, since_s = self._phase
        elapsed = time.monotonic() - since_s
        lines = [self._headline(width)]
        if self._history:
            label = "reward" if "rollout/reward" in self._metrics else "loss"
            curve = sparkline(self._history, max(8, width - LABEL_WIDTH - 24))
            best = max(self._history) if label == "reward" else min(self._history)
            lines.append(_row(label, f"{self._history[-1]:<8.3f}{curve}  best {best:.3f}", "cyan"))
        numbers = [number for number in self._numbers() if not number.startswith(("reward", "loss"))]
        if numbers:
            lines.append(_row("rollout", "  ".join(numbers)))
        if self._evaluation:
            lines.append(_row("evaluation", self._evaluation, "green"))
        if times := _times(self._metrics):
            lines.append(_row("seconds", times))
        lines.append(_row("now", WAITS.get(now, now) + (f", {elapsed:.0f} s" if elapsed >= 1 else ""), "yellow"))
        return Group(*lines)

    def _headline(self, width: int) -> Text:
        from rich.text import Text

        left = self._seconds_left()
        tail = "" if left is None else f"  {clock(left)} left"
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{self._name[: width // 3]}  ", style="bold")
        line.append(f"step {self._count()}  ")
        if self._num_steps:
            share = min(1.0, self._step / self._num_steps)
            tail = f" {share:4.0%}{tail}"
            room = max(4, width - line.cell_len - len(tail))
            filled = round(room * share)
            line.append("━" * filled, style="blue").append("━" * (room - filled), style="bright_black")
        return line.append(tail)

    def _count(self) -> str:
        return f"{self._step}/{self._num_steps}" if self._num_steps else str(self._step)

    def _seconds_left(self) -> float | None:
        if not self._num_steps or self._step <= self._first_step:
            return None
        each_s = (time.monotonic() - self._start_s) / (self._step - self._first_step)
        return each_s * (self._num_steps - self._step)

    @contextmanager
    def _during(self, name: str) -> Iterator[None]:
        outer = self._phase[0]
        self._phase = (name, time.monotonic())
        try:
            yield
        finally:
            self._phase = (outer, time.monotonic())


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of the values in at most ``width`` characters, each the mean of its stretch."""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[len(BARS) // 2] * width
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / (high - low) * len(BARS)))] for mean in means)


def clock(seconds: float) -> str:
    """``1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def tokens_per_s(metrics: Mapping[str, float]) -> float | None:
    """Tokens trained on per second of a step; None where either is unknown."""
    tokens = _first(metrics, "rollout/tokens", "data/tokens")
    seconds = _first(metrics, "time/step")
    return tokens / seconds if tokens is not None and seconds else None


def _first(metrics: Mapping[str, float], *names: str) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _times(metrics: Mapping[str, float]) -> str:
    seconds = {name: metrics.get(f"time/{name}", 0.0) for name in WAITS}
    phases = [f"{SHORT.get(name, name)} {value:.2f}" for name, value in seconds.items() if value >= 0.005]
    if "time/step" in metrics:
        phases.append(f"of {metrics['time/step']:.2f}")
    return "  ".join(phases)


def _row(label: str, value: str, style: str = "") -> Text:
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{label:<{LABEL_WIDTH}} ", style="bright_black").append(value, style=style or None)
    return line
