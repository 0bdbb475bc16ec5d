"""What the display and the plots cost a step of the quickstart: off, on, and on while pictures are drawn all the time.

    python benchmarks/display.py [--steps 600] [--block 8]

One run takes turns: so many steps without, with the live display on a real pseudo-terminal, and with the display and a
drawing process that is started again whenever it ends. So a change in the machine's load meets all three, and the same
model in the same state; the first two steps of a turn are not counted. Ratios are of the medians of neighbouring turns;
their own median and quartiles are printed. A run draws for 2% of its time at most (``SHARE_OF_CPU``), so what drawing
costs it is that share of what it costs while it goes on. CPU seconds are the display's own: of its hooks in the
training thread, of its thread, and of the drawing process, which has the lowest priority.

Found with 900 steps on two cores that other work kept busy (load 10): display 0.998 times a step without (quartiles
0.89 to 1.14), 34 us of CPU a step in hooks and 0.5% of a core in its thread (a refresh is 0.4 ms); a step while
something is drawn 1.14 times; both together +0.04%, far within the noise. Drawing all pictures of a quickstart is 2.4 s
of CPU, and starting it about 10 ms of the training thread.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import statistics
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from areal_lit import hookimpl
from areal_lit.bounded_curve import BoundedCurve
from areal_lit.contracts import Callback, RunLogger
from areal_lit.recipes import resolve
from areal_lit_callbacks.progress import Progress
from areal_lit_loggers.plots.drawing import Order
from areal_lit_loggers.plots.logger import LOWEST_PRIORITY, SHARE_OF_CPU, Drawing
from areal_lit_loggers.plots.pages import OVERVIEW

MODES = ("off", "display", "drawing")
NUM_SKIPPED = 2


class Turns(Callback):
    """Passes hooks on to a display, or not, in turns of so many steps.

    Args:
        block: steps of a turn.
    """

    def __init__(self, *, block: int) -> None:
        self.block = block
        self.mode = MODES[0]
        self.seconds: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
        self.seconds[self.mode].append([])
        self.hook_cpu_s = self.thread_cpu_s = 0.0
        self.num_steps = 0
        self._progress: Progress | None = None
        self._threads: set[threading.Thread] = set()
        self._left = block

    @hookimpl
    def phase(self, name: Any) -> AbstractContextManager[object]:
        return nullcontext() if self._progress is None else self._progress.phase(name)

    @hookimpl
    def step_end(self, trainer: Any, step: int, metrics: Mapping[str, float]) -> None:
        if self._left <= self.block - NUM_SKIPPED:
            self.seconds[self.mode][-1].append(metrics["time/step"])
        if self._progress is not None:
            with self._metered():
                self._progress.step_end(step, metrics)
            self.num_steps += 1
        self._left -= 1
        if not self._left:
            self._left = self.block
            self._take_turn(trainer)

    @hookimpl
    def fit_end(self) -> None:
        self._end_display()

    def _take_turn(self, trainer: Any) -> None:
        self._end_display()
        self.mode = MODES[(MODES.index(self.mode) + 1) % len(MODES)]
        self.seconds[self.mode].append([])
        if self.mode != "off":
            others = set(threading.enumerate())
            self._progress = Progress()
            self._progress.configure(trainer)
            self._threads = set(threading.enumerate()) - others
            self._progress.fit_start(trainer)

    def _end_display(self) -> None:
        if self._progress is not None:
            for thread in self._threads:
                self.thread_cpu_s += time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
            self._progress.fit_end("finished")
            self._progress = None

    @contextmanager
    def _metered(self) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.hook_cpu_s += time.thread_time() - start


class Restless(RunLogger):
    """Draws all the time while the turn says so, and ends its drawing with the turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._curves: dict[str, BoundedCurve] = {}
        self._drawing: Drawing | None = None
        self.cpu_s = self.drawing_cpu_s = 0.0
        self.num_drawings = 0

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        self._directory = run_dir / "plots"

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        start = time.thread_time()
        for name, value in values.items():
            if math.isfinite(value):
                self._curves.setdefault(name, BoundedCurve()).add(step, value)
        if self._drawing is not None and self._drawing.is_over:
            self.drawing_cpu_s += self._drawing.wait(1.0)[0]
            self._drawing = None
            self.num_drawings += 1
        if self._turns.mode != "drawing":
            self.close("")
        elif self._drawing is None:
            curves = {name: curve.points() for name, curve in self._curves.items()}
            order = Order(directory=self._directory, title="run", overview=OVERVIEW, smoothing_steps=10, curves=curves)
            self._drawing = Drawing(order, niceness=LOWEST_PRIORITY)
        self.cpu_s += time.thread_time() - start

    def close(self, status: str) -> None:
        if self._drawing is not None:
            self._drawing.kill()
            self._drawing = None


def pseudo_terminal() -> Any:
    """A stream to a terminal of 80 columns that somebody reads."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def drain() -> None:
        with suppress(OSError):  # the other side was closed
            while os.read(master, 65536):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return os.fdopen(slave, "w")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--block", type=int, default=8)
    arguments = parser.parse_args()
    turns = Turns(block=arguments.block)
    restless = Restless(turns)
    stdout = sys.stdout
    with tempfile.TemporaryDirectory() as directory:
        recipe = resolve(["quickstart"], ["--max_steps", str(arguments.steps), "--runs_dir", directory])
        trainer = recipe.build()
        trainer.callbacks, trainer.loggers = [turns], [restless]
        sys.stdout = pseudo_terminal()
        os.environ.pop("CI", None)
        try:
            trainer.fit()
        finally:
            sys.stdout = stdout
    report(turns, restless, arguments.steps)


def report(turns: Turns, restless: Restless, num_steps: int) -> None:
    """Print what each turn took, against the one without, and the display's own CPU time."""
    cycles = list(zip(*(turns.seconds[mode] for mode in MODES), strict=False))
    cycles = [cycle for cycle in cycles if all(cycle)]
    ratios = {}
    print(f"{'turn':<8} {'steps':>6} {'median ms':>10} {'to off: median':>15} {'quartiles':>16}")
    for index, mode in enumerate(MODES):
        seconds = [second for turn in turns.seconds[mode] for second in turn]
        of_cycles = [statistics.median(cycle[index]) / statistics.median(cycle[0]) for cycle in cycles]
        low, ratios[mode], high = statistics.quantiles(of_cycles, n=4)
        median_ms = statistics.median(seconds) * 1e3
        print(f"{mode:<8} {len(seconds):>6} {median_ms:>10.2f} {ratios[mode]:>15.3f} {f'{low:.3f} to {high:.3f}':>16}")
    shown_s = sum(sum(turn) for mode in MODES[1:] for turn in turns.seconds[mode])
    print(
        f"display: {turns.hook_cpu_s / turns.num_steps * 1e6:.0f} us of CPU a step in hooks, "
        f"{turns.thread_cpu_s / shown_s:.2%} of a core in its thread"
    )
    print(
        f"plots: {restless.cpu_s / num_steps * 1e6:.0f} us of CPU a step in the training thread, with "
        f"{restless.num_drawings} drawings that ended, of {restless.drawing_cpu_s:.1f} s of CPU in all"
    )
    cost = ratios["display"] - 1 + SHARE_OF_CPU * (ratios["drawing"] - ratios["display"])
    print(f"cost of both in a run: {cost:+.2%} of a step")


if __name__ == "__main__":
    main()
