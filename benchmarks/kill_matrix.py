"""Every cell of the kill matrix: SIGKILL for each kind of process in each phase, then resume.

    python benchmarks/kill_matrix.py [--phases train evaluate] [--victims rank engine] [--delay-s 0.02] [--jobs 2]

Prints a table of phases and victims: seconds where the run ended or went on as it should, nothing was left behind and,
after the resume, every prompt was trained once an epoch within its staleness; else what was wrong. What a cell does
stands in tests/faults/kill_cells.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from kill_cells import PHASES, VICTIMS, check_cell


def outcome(phase: str, victim: str, delay_s: float) -> str:
    """Seconds; of a failed cell what was wrong is printed."""
    directory = Path(tempfile.mkdtemp(prefix=f"kill-{phase}-{victim}-"))
    start = time.monotonic()
    try:
        check_cell(directory, phase, victim, delay_s=delay_s)
    except AssertionError:
        print(f"{phase}, {victim}: see {directory}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return "FAILED"
    return f"{time.monotonic() - start:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    parser.add_argument("--delay-s", type=float, default=0.0, help="from the phase's begin to the blow")
    parser.add_argument("--jobs", type=int, default=1, help="cells that run at once")
    options = parser.parse_args()
    cells = [(phase, victim) for phase in options.phases for victim in options.victims]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = dict(zip(cells, pool.map(lambda cell: outcome(*cell, options.delay_s), cells), strict=True))
    print(f"| phase | {' | '.join(options.victims)} |")
    print(f"|---|{'---|' * len(options.victims)}")
    for phase in options.phases:
        print(f"| {phase} | {' | '.join(outcomes[phase, victim] for victim in options.victims)} |")
    sys.exit("FAILED" in outcomes.values())


if __name__ == "__main__":
    main()
