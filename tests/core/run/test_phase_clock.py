"""The clock of a step starts when everything has started."""

from __future__ import annotations

import time

from areal_lit.run.phase_clock import PhaseClock


def test_what_comes_before_the_first_step_is_no_part_of_it() -> None:
    clock = PhaseClock()
    with clock.phase("sync_weights"):
        pass
    start = time.monotonic()
    clock.fit_start()
    with clock.phase("train"):
        pass
    values = {metric.name: metric.value for metric in clock.metrics()}
    assert set(values) == {"time/train", "time/step"}
    assert 0 <= values["time/train"] <= values["time/step"] <= time.monotonic() - start
