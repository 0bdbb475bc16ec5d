"""The directory of a run: one run at a time, no secrets, nothing left open."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_lit.logs import Logs
from areal_lit.run.directory import RunDirectory, make_free, refusal, taken


@contextmanager
def opened(path: Path, *, config: Any = None, resume: bool = False, overwrite: bool = False) -> Iterator[RunDirectory]:
    with RunDirectory(
        path, config=config or {"name": "x"}, resume=resume, overwrite=overwrite, logs=Logs()
    ) as directory:
        directory.begin()
        yield directory


def use(path: Path, **options: Any) -> None:
    with opened(path, **options):
        pass


def test_it_keeps_the_recipe_without_secrets_and_what_the_controller_says(tmp_path: Path) -> None:
    with opened(tmp_path / "run", config={"name": "x", "token": "hf_1"}) as directory:
        logging.getLogger("areal_lit.anything").warning("look here")
    logging.getLogger("areal_lit.anything").warning("not here")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()) == {"name": "x", "token": "***"}
    text = directory.log.read_text()
    assert "look here" in text
    assert "not here" not in text


WARNING = """
import logging, sys
from pathlib import Path
from areal_lit.logs import Logs, shown_on_terminal
from areal_lit.run.directory import RunDirectory
if sys.argv[2] == "configured":
    logging.basicConfig(format="mine: %(message)s")
log = logging.getLogger("areal_lit.run.recipe_changes")
with shown_on_terminal(), RunDirectory(Path(sys.argv[1]), config={}, resume=True, overwrite=False, logs=Logs()):
    log.info("only in the file")
    log.warning("resume: seed 0 -> 1")
    log.error("run failed", exc_info=ValueError("raised anyway"))
log.info("nowhere")
"""


@pytest.mark.parametrize(("how", "shown"), [("plain", "WARNING: "), ("configured", "mine: ")])
def test_a_script_shows_warnings_once_as_it_set_logging_up_or_not_at_all(tmp_path: Path, how: str, shown: str) -> None:
    command = [sys.executable, "-c", WARNING, str(tmp_path / "run"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "seed 0 -> 1" in line] == [f"{shown}resume: seed 0 -> 1"]
    if how == "plain":
        assert len(done.stderr.splitlines()) == 1, "a traceback is left to whoever gets the exception"
    assert "only in the file" not in done.stderr
    assert "nowhere" not in done.stderr
    assert "only in the file" in (tmp_path / "run" / "logs" / "controller.log").read_text()


def test_a_run_is_neither_overwritten_nor_shared(tmp_path: Path) -> None:
    with opened(tmp_path):
        (tmp_path / "metrics.csv").write_text("step,train/loss\n1,0.5\n")
        with pytest.raises(FileExistsError, match=r'--resume auto, fit\(resume="auto"\).*overwrite=True'):
            use(tmp_path)
        with pytest.raises(FileExistsError, match="in use"):
            use(tmp_path, resume=True)
        with pytest.raises(FileExistsError, match="in use"):
            use(tmp_path, overwrite=True)
    (tmp_path / "mine").touch()
    use(tmp_path, resume=True)
    assert (tmp_path / "mine").exists()
    use(tmp_path, overwrite=True)
    assert not (tmp_path / "mine").exists()


def test_an_overwritten_run_lasts_until_the_new_one_has_begun(tmp_path: Path) -> None:
    path, replaced = tmp_path / "run", tmp_path / "run.replaced"
    for number in ("1", "2"):
        use(path, overwrite=True)
        (path / "samples.jsonl").write_text(number)
    for _ in range(2):
        with RunDirectory(path, config={}, resume=False, overwrite=True, logs=Logs()):
            pass
        assert (replaced / "samples.jsonl").read_text() == "2"
    use(path, overwrite=True)
    assert not replaced.exists()
    assert not (path / "samples.jsonl").exists()


def test_a_foreign_directory_of_the_replaced_name_does_not_matter_to_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "run.replaced").mkdir()
    use(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run.replaced").exists()


@pytest.mark.parametrize("name", ["run", "run.replaced"])
def test_a_directory_that_was_not_made_for_a_run_is_never_deleted(tmp_path: Path, name: str) -> None:
    foreign = tmp_path / name
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    (foreign / "config.yaml").touch()
    use(tmp_path / "run", resume=True)
    (tmp_path / "run" / "samples.jsonl").write_text("1")
    with pytest.raises(FileExistsError, match=f"{name} is not deleted: .*move it away yourself"):
        use(tmp_path / "run", overwrite=True)
    assert (foreign / "thesis.tex").exists()


def test_a_run_beside_its_evaluations_is_overwritten(tmp_path: Path) -> None:
    use(tmp_path / "run" / "evaluations" / "1")
    use(tmp_path / "run")
    (tmp_path / "run" / "samples.jsonl").write_text("1")
    use(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "samples.jsonl").exists()


def test_the_recipe_of_a_run_stays_until_another_has_begun(tmp_path: Path) -> None:
    use(tmp_path, config={"name": "first"})
    with RunDirectory(tmp_path, config={"name": "second"}, resume=True, overwrite=False, logs=Logs()):
        pass
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"name": "first"}


def test_what_failed_before_its_first_step_does_not_take_the_name(tmp_path: Path) -> None:
    use(tmp_path, config={"name": "first"})
    (tmp_path / "metrics.csv").write_text("step\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "logs" / "engine-0.log").write_text("out of memory\n")
    use(tmp_path, config={"name": "second"})
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"name": "second"}
    assert (tmp_path / "logs" / "engine-0.log").exists()


@pytest.mark.parametrize("result", ["checkpoints/step-00000001/state.json", "samples.jsonl"])
def test_any_result_takes_the_name(result: str, tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / result).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / result).write_text("{}")
    with pytest.raises(FileExistsError, match="holds a run already"):
        use(tmp_path)


def test_one_that_cannot_be_opened_leaves_neither_lock_nor_handler(tmp_path: Path) -> None:
    before = list(logging.getLogger("areal_lit").handlers)
    (tmp_path / "logs" / "controller.log").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        use(tmp_path)
    assert logging.getLogger("areal_lit").handlers == before
    (tmp_path / "logs" / "controller.log").rmdir()
    use(tmp_path)


def test_the_package_logs_as_before_afterwards(tmp_path: Path) -> None:
    package = logging.getLogger("areal_lit")
    before = package.level, package.propagate, list(package.handlers)
    with opened(tmp_path):
        assert package.isEnabledFor(logging.INFO)
    assert (package.level, package.propagate, list(package.handlers)) == before


@pytest.mark.parametrize(("name", "reason"), [("a" * 300, "File name too long"), ("a\0b", "null byte")])
def test_a_path_that_no_file_system_takes_is_refused_before_anything_starts(
    name: str, reason: str, tmp_path: Path
) -> None:
    told = refusal(tmp_path / name / "run")
    assert "cannot be made" in told
    assert reason in told
    assert taken(tmp_path / name / "run") == ""


def test_a_link_to_nothing_and_a_name_that_is_no_utf8_are_told_beforehand(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "good").symlink_to(tmp_path)
    assert refusal(tmp_path / "good" / "run") == ""
    assert f"{tmp_path / 'link'} is a link to nothing; choose another place" in refusal(tmp_path / "link" / "run")
    assert "surrogates not allowed; choose another place" in refusal(tmp_path / os.fsdecode(b"caf\xe9"))


def test_evaluations_that_begin_in_one_second_have_a_directory_each(tmp_path: Path) -> None:
    path = tmp_path / "evaluations" / "20260101-120000"
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: make_free(path), range(8)))
    assert sorted(made) == sorted([path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 9))])
    assert all(place.is_dir() for place in made)
    use(made[0])
    use(made[7])
