"""areal-lit (synchronous, and with max_staleness 2) against TRL's GRPOTrainer, interleaved in one run.

Same model sizes, prompts, samples, lengths, reward and two threads; the model is random, so that lengths are geometric.
Prints samples/s, multiples of TRL's and of our own synchronous run, and peak memory over all processes; how soon the
first step ends is measured by ``startup.py``.

Usage: python benchmarks/against_trl.py --trl-python ENV/bin/python [--repeats 3] [--rows 0 1 2]
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import psutil

Measured = dict[str, float]

HERE = Path(__file__).parent
ROWS = ((16, 8, 6, 60), (32, 8, 64, 20), (8, 8, 512, 20))  # prompts, samples, longest, steps
MODEL = {
    "model_type": "qwen3", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def proportional_memory_gb(process: psutil.Process) -> float:
    """Memory of a process and its descendants; shared pages count once."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 2**30


def fit_command(row: tuple[int, int, int, int], staleness: int, directory: Path) -> list[str]:
    """Our run of a row; synchronous with two threads each, else with one for each of trainer and engine."""
    prompts, samples, longest, steps = row
    threads = 2 if staleness == 0 else 1
    return [
        sys.executable, "-m", "areal_lit", "fit", "--config", "quickstart", "--runs_dir", str(directory),
        "--policy.model.config", json.dumps(MODEL), "--max_steps", str(steps),
        "--rollout.groups_per_step", str(prompts), "--rollout.samples_per_group", str(samples),
        "--rollout.max_staleness", str(staleness), "--rollout.sampling.max_new_tokens", str(longest),
        "--policy.num_threads", str(threads), "--inference.num_threads", str(threads),
        "--checkpoint.at_end", "false",
    ]  # fmt: skip


def ours(row: tuple[int, int, int, int], staleness: int, *, own: list[str]) -> Measured:
    """One fit in a process of its own."""
    prompts, samples, *_ = row
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        metrics = directory / "quickstart" / "metrics.csv"
        with (directory / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [*fit_command(row, staleness, directory), *own], stdout=output, stderr=subprocess.STDOUT
            )
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, proportional_memory_gb(psutil.Process(process.pid)))
                time.sleep(0.25)
        if process.returncode:
            raise SystemExit((directory / "output.txt").read_text())
        with metrics.open() as file:
            seconds = [float(r["time/step"]) for r in csv.DictReader(file)][3:]
    return {
        "samples_per_s": prompts * samples / statistics.median(seconds),
        "mean_samples_per_s": prompts * samples / statistics.fmean(seconds),
        "peak_gb": peak,
    }


def theirs(row: tuple[int, int, int, int], python: str) -> Measured:
    """One TRL run in its environment."""
    prompts, samples, longest, steps = row
    with tempfile.TemporaryDirectory() as directory:
        command = [python, str(HERE / "trl_grpo.py"), *map(str, (steps, prompts, samples, longest, 2))]
        start = time.time()
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    measured: Measured = json.loads(done.stdout.strip().splitlines()[-1])
    return {**measured, "first_step_s": measured["first_step_at"] - start}


def parsed(description: str | None) -> tuple[argparse.Namespace, list[str]]:
    """Options of a comparison with TRL, and what is for our own runs alone."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--trl-python", help="interpreter of an environment with trl; without it only ours run")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--rows", type=int, nargs="*", default=[0, 1, 2])
    return arguments.parse_known_args()


def interleaved(repeats: int, sides: Mapping[str, Callable[[], Measured]]) -> dict[str, list[Measured]]:
    """What each side measures, one run of each after the other."""
    runs: dict[str, list[Measured]] = {who: [] for who in sides}
    for _ in range(repeats):
        for who, run in sides.items():
            runs[who].append(run())
    return runs


def main() -> None:
    options, own = parsed(__doc__)
    print("| prompts x samples x longest | who | samples/s | x TRL | x ours synchronous | peak GB |")
    print("|---|---|---|---|---|---|")
    for row in (ROWS[index] for index in options.rows):
        sides: dict[str, Callable[[], Measured]] = {
            "synchronous": partial(ours, row, 0, own=own), "max_staleness 2": partial(ours, row, 2, own=own)
        }  # fmt: skip
        if options.trl_python:
            sides = {"TRL": partial(theirs, row, options.trl_python), **sides}
        runs = interleaved(options.repeats, sides)
        for who, results in runs.items():
            median = {key: statistics.median(r[key] for r in results) for key in results[0]}

            def ratio(other: str, results: list[Measured] = results, runs=runs) -> str:
                pairs = zip(results, runs.get(other, ()), strict=False)
                ratios = [a["samples_per_s"] / b["samples_per_s"] for a, b in pairs]
                return f"{statistics.median(ratios):.2f}" if ratios else "-"

            print(
                f"| {' x '.join(map(str, row[:3]))} | {who} | {median['samples_per_s']:.0f} | {ratio('TRL')} | "
                f"{ratio('synchronous')} | {median['peak_gb']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
