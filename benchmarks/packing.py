"""Packing of 100,000 lognormal lengths: seconds and share of the budget used.

    python benchmarks/packing.py

The budget is 4 times the mean and the longest length is clipped to it. To reach: < 1 s, >= 95% used.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from areal_lit.packing import first_fit_decreasing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_lengths", type=int, default=100_000)
    parser.add_argument("--mean", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    budget = 4 * args.mean
    draws = np.random.default_rng(0).lognormal(mean=0.0, sigma=1.0, size=args.num_lengths)
    lengths = np.clip(draws / draws.mean() * args.mean, 1, budget).astype(np.int64)
    lengths[0] = budget
    seconds = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        bins = first_fit_decreasing(lengths, budget)
        seconds.append(time.perf_counter() - start)
    used = lengths.sum() / (len(bins) * budget)
    median = statistics.median(seconds)
    print(f"{args.num_lengths} lengths, budget {budget}: {len(bins)} bins, {used:.2%} used, median {median:.3f} s")


if __name__ == "__main__":
    main()
