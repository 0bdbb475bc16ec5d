"""A long run, watched: does anything grow? Memory, file handles, threads, children, shared memory, mismatch, step rate.

    python benchmarks/soak.py --minutes 60 --directory soak

Runs a recipe with a constant learning rate for so long, looks at the controller and all its descendants every 30 s,
ends the run by SIGTERM and checks that it ended well and left nothing. Writes ``soak.csv`` and ``soak.png`` and prints
the slope per hour of each series after the warm-up, with its standard error and a verdict: *flat* when the slope is
below the limit with two standard errors to spare, *rising* (or *falling*) when it is above by as much, else *open*: the
run was too short to tell. Ends with status 1 unless all are flat or open. Further arguments go to ``areal-lit fit``.

Memory is judged by what no other program of the machine can change: resident memory (RSS), and private memory, which is
a process's anonymous pages, in RAM or swapped. The usual USS and PSS count a library's pages as the run's own, or more
of them as its own, once another program that mapped the same library has ended. Speed is judged in steps per second of
processor time of the run's own processes, for the same reason; steps per second are in the table.

Limits per hour: memory 2% of its mean and at least 2 MB; handles and threads 1; children 0.5; mismatch and probe
1e-5 (a hundredth of what a run warns of in float32); steps per processor second a loss of 5% of the mean.
"""

from __future__ import annotations

import argparse
import csv
import math
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from areal_lit.run_records import parse_rows

MB = 2**20
METRICS_TAIL_BYTES = 2**19
END_TIMEOUT_S = 60.0
REWARD, OTHERS = "reward", "others"
RECIPE = (
    "--policy.optimizer.lr", "1e-5", "--policy.optimizer.schedule", "constant", "--max_steps", "10000000",
    "--rollout.num_epochs", "null", "--checkpoint.every_steps", "500", "--sync.probe_every", "10",
    "--overwrite", "true",
)  # fmt: skip

Sample = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much a series may change in an hour: ``absolute`` or ``share`` of its mean, whichever is more."""

    absolute: float = 0.0
    share: float = 0.0
    is_loss: bool = False

    def of(self, mean: float) -> float:
        return max(self.absolute, self.share * abs(mean))


LIMITS = {
    "rss_mb": Limit(absolute=2.0, share=0.02),
    "private_mb": Limit(absolute=2.0, share=0.02),
    "shm_mb": Limit(absolute=2.0, share=0.02),
    "handles": Limit(absolute=1.0),
    "threads": Limit(absolute=1.0),
    "children": Limit(absolute=0.5),
    "mismatch": Limit(absolute=1e-5),
    "probe": Limit(absolute=1e-5),
    "steps_per_cpu_s": Limit(share=0.05, is_loss=True),
}
"""By the last part of a column's name."""


def role_of(process: psutil.Process, controller: int) -> str:
    """The controller, a rank or engine by its name, ``reward`` for workers and their keepers, else ``others``."""
    command = [argument.strip() for argument in process.cmdline() if argument.strip()]
    if process.pid == controller:
        return "controller"
    if "areal_lit.rewarding" in " ".join(command):
        return REWARD
    return command[-1] if "worker.py" in " ".join(command) else OTHERS


def shared_files(pid: int) -> dict[str, int]:
    """Bytes that a process maps of each file in shared memory; of a removed one the name says so."""
    found: dict[str, int] = defaultdict(int)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith("/dev/shm/"):
            begin, end = (int(address, 16) for address in span.split("-"))
            found[path[0]] += end - begin
    return found


def private_bytes(pid: int) -> int:
    """Anonymous memory of a process, wherever it is: nothing of a library that other programs map too."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line[0] in ("RssAnon:", "VmSwap:"))


def look(controller: psutil.Process) -> dict[str, float]:
    """What the run's processes hold now, per role and in all."""
    sample: dict[str, float] = defaultdict(float)
    shared: dict[str, int] = {}
    for process in [controller, *controller.children(recursive=True)]:
        try:
            role = role_of(process, controller.pid)
            resident, private = process.memory_info().rss, private_bytes(process.pid)
            handles, threads, mapped = process.num_fds(), process.num_threads(), shared_files(process.pid)
            used = process.cpu_times()
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        for file, size in mapped.items():
            shared[file] = max(size, shared.get(file, 0))
        sample["children"] += process.pid != controller.pid
        if role not in (REWARD, OTHERS):  # those come and go, and their time with them
            sample["cpu_s"] += used.user + used.system
        for part in (role, "all"):
            sample[f"{part}/rss_mb"] += resident / MB
            sample[f"{part}/private_mb"] += private / MB
            sample[f"{part}/handles"] += handles
            sample[f"{part}/threads"] += threads
    sample["shm_mb"] = sum(shared.values()) / MB
    return sample


def progress(metrics: Path, since: int) -> dict[str, float]:
    """The last step of metrics.csv, and means over the steps after ``since``."""
    with metrics.open("rb") as file:
        header = file.readline()
        if (start := metrics.stat().st_size - METRICS_TAIL_BYTES) > file.tell():
            file.seek(start)
            file.readline()  # the rest of a row
        lines = [line.decode() for line in (header, *file)]
    rows = [row for row in parse_rows(lines, name=str(metrics)) if row.step > since]

    def mean(name: str) -> float:
        values = [numbers[name] for row in rows if name in (numbers := row.numbers())]
        return sum(values) / len(values) if values else math.nan

    step = rows[-1].step if rows else since
    return {"step": step, "mismatch": mean("train/logprob_mismatch"), "probe": mean("sync/probe_difference")}


def watch(run: subprocess.Popen[bytes], metrics: Path, table: Path, *, minutes: float, every_s: float) -> list[Sample]:
    """A sample every so often, each written to the table at once. Raises SystemExit when the run ends before."""
    controller = psutil.Process(run.pid)
    samples: list[Sample] = []
    begun = before = time.monotonic()
    step, used_s = 0, 0.0
    while before - begun < minutes * 60:
        try:
            run.wait(timeout=every_s)
            raise SystemExit(f"the run ended with status {run.returncode} after {(before - begun) / 60:.1f} minutes")
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if not metrics.exists() or metrics.stat().st_mtime < controller.create_time():
            begun = before = now  # it has not begun yet
            continue
        done = progress(metrics, step)
        held, num_steps = look(controller), done["step"] - step
        speed = {"steps_per_s": num_steps / (now - before), "steps_per_cpu_s": num_steps / (held["cpu_s"] - used_s)}
        samples.append({"minutes": (now - begun) / 60, **speed, **done, **held})
        before, step, used_s = now, int(done["step"]), held["cpu_s"]
        write(table, samples)
        print(summary(samples[-1]), flush=True)
    return samples[1:]  # the first interval began before the first step


def summary(sample: Sample) -> str:
    told = ("children", "all/private_mb", "all/handles", "all/threads", "shm_mb", "probe")
    rest = ", ".join(f"{name} {sample[name]:.4g}" for name in told)
    return f"{sample['minutes']:6.1f} min: step {sample['step']:.0f}, {sample['steps_per_s']:.2f} steps/s, {rest}"


def names_of(samples: Sequence[Sample]) -> list[str]:
    """Every column, in order of appearance."""
    return list(dict.fromkeys(name for sample in samples for name in sample))


def write(table: Path, samples: Sequence[Sample]) -> None:
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, names_of(samples), restval="0")
        writer.writeheader()
        writer.writerows({name: f"{value:.6g}" for name, value in sample.items()} for sample in samples)


def slope(hours: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Least-squares slope and its standard error."""
    centred = hours - hours.mean()
    rate = float(centred @ values / (centred @ centred))
    rest = values - values.mean() - rate * centred
    return rate, math.sqrt(float(rest @ rest) / max(1, len(values) - 2) / float(centred @ centred))


def judge(samples: Sequence[Sample], warm_up: float) -> bool:
    """Print a row per series; whether none changes by more than its limit."""
    samples = [sample for sample in samples if sample["minutes"] >= warm_up]
    is_fine = True
    print(f"\n{'series':24} {'mean':>10} {'per hour':>10} {'error':>9} {'limit':>9}  verdict")
    for name in names_of(samples):
        if (limit := LIMITS.get(name.split("/")[-1])) is None:
            continue
        points = [(s["minutes"] / 60, s.get(name, 0.0)) for s in samples if not math.isnan(s.get(name, 0.0))]
        if len(points) < 3:
            print(f"{name:24} {len(points)} values: open")
            continue
        hours, values = np.array(points).T
        rate, error = slope(hours, values)
        mean, most = float(values.mean()), limit.of(float(values.mean()))
        change = -rate if limit.is_loss else rate
        verdict = "flat" if change + 2 * error <= most else "open"
        if change - 2 * error > most:
            verdict, is_fine = "falling" if limit.is_loss else "rising", False
        print(f"{name:24} {mean:10.4g} {rate:+10.3g} {error:9.2g} {most:9.2g}  {verdict}")
    return is_fine


def draw(samples: Sequence[Sample], path: Path, warm_up: float) -> None:
    """A small picture per kind of series, with a line per role."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), dpi=110, layout="constrained")
    for index, kind in enumerate(LIMITS):
        axes = figure.add_subplot(3, 3, index + 1)
        for name in [name for name in names_of(samples) if name.split("/")[-1] == kind]:
            values = [sample.get(name, math.nan) for sample in samples]
            axes.plot([sample["minutes"] for sample in samples], values, label=name.split("/")[0], linewidth=1.3)
        axes.axvspan(0, warm_up, color="#e5e7eb", zorder=0)
        axes.set_title(kind, loc="left", fontsize=10)
        axes.set_xlabel("minutes", fontsize=8)
        axes.set_ylim(bottom=0)
        if "rss" in kind:
            axes.legend(fontsize=7, frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))


def end(run: subprocess.Popen[bytes]) -> list[str]:
    """End the run by SIGTERM; what is wrong with how it ended."""
    processes = psutil.Process(run.pid).children(recursive=True)
    shared = {Path(name) for process in processes for name in shared_files(process.pid)}
    run.send_signal(signal.SIGTERM)
    problems = []
    try:
        run.wait(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        run.kill()
        problems.append(f"the run did not end within {END_TIMEOUT_S:g} s of SIGTERM")
    _, left = psutil.wait_procs(processes, timeout=5.0)
    problems += [f"process {process.pid} is left over" for process in left]
    problems += [f"{path} is left over" for path in shared if path.exists()]
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, help="minutes that are not judged; default: a sixth of all")
    parser.add_argument("--every-s", type=float, default=30.0)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--directory", type=Path, default=Path("soak"), help="takes the table, the picture and the run")
    options, own = parser.parse_known_args()
    warm_up = options.minutes / 6 if options.warm_up is None else options.warm_up
    options.directory.mkdir(parents=True, exist_ok=True)
    table, runs, name = options.directory / "soak.csv", options.directory / "runs", "soak"
    command = [sys.executable, "-m", "areal_lit", "fit", "--config", options.recipe, "--runs_dir", str(runs),
               "--name", name, *RECIPE, *own]  # fmt: skip
    with (options.directory / "output.txt").open("wb") as output:
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        samples = watch(
            run, runs / name / "metrics.csv", table, minutes=options.minutes, every_s=options.every_s
        )  # fmt: skip
    finally:
        problems = end(run) if run.poll() is None else []
    draw(samples, options.directory / "soak.png", warm_up)
    is_fine = judge(samples, warm_up)
    for problem in problems:
        print(problem)
    sys.exit(not is_fine or bool(problems))


if __name__ == "__main__":
    main()
