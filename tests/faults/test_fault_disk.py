"""A disk that fills up while loggers write and while weights are handed over; checkpoints have a test of their own."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acting_callbacks import AtStep
from fault_parts import Trained, small

from areal_lit import Checkpoint
from areal_lit.contracts import RunLogger
from areal_lit.run.loggers import LoggerError
from areal_lit.weight_sync import WeightSyncError
from areal_lit_inference.transformers import Transformers
from areal_lit_loggers.csv import Csv
from areal_lit_loggers.plots import Plots
from areal_lit_loggers.samples import Samples
from areal_lit_transports.file import File


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Sets the size that no file of this process may exceed: as on a full disk, writing more is an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize(("logger", "file"), [(Csv(), "metrics.csv"), (Samples(groups_per_step=9), "samples.jsonl")])
def test_a_logger_on_a_full_disk_is_named_with_its_file_and_the_way_out(
    tmp_path: Path, limit: Callable[[int], None], capfd: pytest.CaptureFixture[str], logger: RunLogger, file: str
) -> None:
    fill = AtStep(1, lambda: limit((tmp_path / "run" / file).stat().st_size + 10))
    run = small(tmp_path, loggers=[logger], callbacks=[fill])
    says = rf"(metrics|samples)\(\) of logger .*{type(logger).__name__} .areal-lit .* at step 2: .*too large: .*; free"
    with pytest.raises(LoggerError, match=says) as ended:
        run.fit()
    assert str(tmp_path / "run" / file) in str(ended.value)
    assert "there is no checkpoint to go on from: begin anew" in "".join(ended.value.__notes__), "that did not fit too"
    assert "Logging error" not in capfd.readouterr().err
    limit(resource.RLIM_INFINITY)
    small(tmp_path, loggers=[Csv(), after := Trained()], overwrite=True).fit()
    assert after.steps


@pytest.mark.slow
def test_weights_that_do_not_fit_are_told_with_the_file_and_the_way_out(
    tmp_path: Path, limit: Callable[[int], None]
) -> None:
    memory = tmp_path / "memory"
    run = small(
        tmp_path, transport=File(directory=str(memory), keep=False), callbacks=[AtStep(1, lambda: limit(20_000))],
        inference=Transformers(max_slots=16, update_timeout_s=2.0),
    )  # fmt: skip
    says = rf"sync of version 2 failed at trainer rank 0, sending: .*'{memory}/.*'; the weights take \d+ bytes: enlarge"
    with pytest.raises(WeightSyncError, match=says):
        run.fit()
    limit(resource.RLIM_INFINITY)
    assert not list(memory.rglob("weights*")), "nothing of it is left"
    small(tmp_path, loggers=[after := Trained()]).fit(resume="auto")
    assert after.steps


@pytest.mark.slow
def test_plots_that_do_not_fit_are_told_with_the_file_and_the_run_goes_on(
    tmp_path: Path, limit: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    run = small(
        tmp_path, loggers=[Plots(every_s=0.0)], callbacks=[AtStep(1, lambda: limit(20_000))],
        checkpoint=Checkpoint(at_end=False),
    )  # fmt: skip
    path = run.fit()
    assert re.search(rf"drawing failed: .*File too large: '{path}/plots/\w+.png'; free space there$", caplog.text)
