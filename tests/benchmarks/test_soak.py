"""The soak judges what a run itself holds, and no other program of the machine."""

from __future__ import annotations

import importlib
import math
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MB = 2**20


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("soak")


def test_private_memory_is_what_a_process_wrote_and_no_file_that_it_reads(soak: Any, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_bytes(bytes(64 * MB))
    before = soak.private_bytes(os.getpid())
    with library.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert sum(mapped[::4096]) == 0  # every page is resident, and this process is the only one that maps it
        assert soak.private_bytes(os.getpid()) - before < 8 * MB
        mapped.close()
    own = bytearray(os.urandom(64 * MB))
    assert soak.private_bytes(os.getpid()) - before > 56 * MB, len(own)


@pytest.mark.parametrize(
    ("column", "per_hour", "is_fine"),
    [
        ("all/private_mb", 50.0, False),
        ("all/rss_mb", 50.0, False),
        ("all/rss_mb", 1.0, True),
        ("probe", math.nan, True),
        ("steps_per_cpu_s", -50.0, False),
        ("steps_per_s", -200.0, True),
    ],
)
def test_a_series_that_changes_by_more_than_its_limit_fails_the_soak(
    soak: Any, column: str, per_hour: float, is_fine: bool
) -> None:
    samples = [{"minutes": float(minute), column: 400 + per_hour * minute / 60} for minute in range(60)]
    assert soak.judge(samples, warm_up=10.0) is is_fine
