from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from areal_lit.cli.hooks import markdown
from areal_lit.cli.main import main
from areal_lit.cli.reporting import guarded
from areal_lit.recipes import RecipeError, load, shipped

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments", ["'--help'", "'plugins'", "'plugins', '--json'", "'recipes'", "'plugins', '--hooks'"]
)
def test_quick_commands_import_neither_torch_nor_a_plugin(arguments: str) -> None:
    code = (
        "import sys; from areal_lit.cli.main import main; "
        f"code = main([{arguments}]); "
        "heavy = {name for name in sys.modules if name.split('.')[0] in ('torch', 'transformers', 'jsonargparse')}; "
        "plugins = {n for n in sys.modules if n.startswith('areal_lit_') and not n.startswith('areal_lit_recipes')}; "
        "sys.exit(f'{heavy} {plugins}' if heavy or plugins else code)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_plugins_as_json_has_exactly_these_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {tuple(row) for row in rows} == {("kind", "name", "distribution", "version", "help")}
    grpo = next(row for row in rows if row["name"] == "grpo")
    assert grpo["distribution"] == "areal-lit"
    assert grpo["help"].startswith("Centre each reward on its group")


def test_the_table_of_plugins_fits_its_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert main(["plugins"]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80
    assert "`" not in table


def test_without_a_terminal_each_plugin_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plugins", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert main(["plugins"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    for line, row in zip(lines, rows, strict=True):
        assert line.split()[:2] == [row["kind"], row["name"]]
        assert line.rstrip().endswith(row["help"].replace("`", ""))


def test_every_plugin_says_in_one_line_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plugins", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows if row["distribution"] == "areal-lit" and not row["help"]] == []


def test_hooks_documentation_is_current() -> None:
    written = (ROOT / "docs" / "hooks.md").read_text()
    assert written == markdown(), "run `areal-lit plugins --hooks > docs/hooks.md`"


def test_unknown_commands_and_bad_recipes_end_with_one_message_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fitt"]) == 2
    assert "did you mean fit?" in capsys.readouterr().err
    assert main(["fit"]) == 2
    assert "no recipe is given" in capsys.readouterr().err
    assert main(["fit", "--config", "quickstart", "--policy.optimizer.learning_rate=1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("areal-lit fit: error: policy.optimizer.init_args.learning_rate: AdamW has no such key")
    assert "Traceback" not in told
    assert main(["validate", "--config"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [("evaluate", "--checkpoint", "no/such"), ("fit", "--resume=no/such"), ("validate", "--resume=no/such")],
)
def test_a_checkpoint_that_is_not_there_is_named_before_anything_starts(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--config", "quickstart", "--runs_dir", str(tmp_path / "runs")]) == 1
    told = capsys.readouterr().err
    assert (
        "breaks 1 rule:\n  - there is no checkpoint to be had at 'no/such': it does not exist; give one (runs/" in told
    )
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_of_the_newest_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--config", "quickstart", "--runs_dir", str(tmp_path), "--checkpoint", "auto"]) == 1
    assert (
        f"there is no checkpoint in {tmp_path / 'quickstart' / 'checkpoints'}; give a path" in capsys.readouterr().err
    )


def test_print_config_is_a_recipe_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "quickstart", "--max_steps", "3", "--print_config"]) == 0
    first = capsys.readouterr().out
    assert yaml.safe_load(first)["max_steps"] == 3
    (tmp_path / "again.yaml").write_text(first)
    assert main(["fit", f"--config={tmp_path / 'again.yaml'}", "--print_config"]) == 0
    assert capsys.readouterr().out == first


def test_dropped_arguments_are_reported_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "quickstart", "--algorithm", "sft", "--print_config"]) == 0
    assert "note: algorithm.init_args.decoupled is dropped" in capsys.readouterr().err


def test_validate_shows_what_would_start_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--config", "quickstart"]) == 0
    assert "controller: this process" in capsys.readouterr().out


def test_validate_and_fit_tell_every_broken_rule_and_start_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    broken = ["--config", "quickstart", "--max_steps", "0", "--num_minibatches", "-1", "--rollout.max_staleness", "0",
              "--sync.interval", "4"]  # fmt: skip
    for command in ("validate", "fit"):
        assert main([command, *broken]) == 1
        told = capsys.readouterr().err
        for rule in ("max_steps must be >= 1", "num_minibatches must be >= 1", "rollout.max_staleness 0 must be >="):
            assert rule in told


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_resolves_and_has_a_headline(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = load(name)
    assert trainer.config["algorithm"]["class_path"].count(".") >= 2
    main(["recipes"])
    assert any(
        line.split(maxsplit=1)[0] == name and len(line.split()) > 3 for line in capsys.readouterr().out.splitlines()
    )


def test_load_takes_names_dictionaries_and_overrides() -> None:
    trainer = load("quickstart", {"max_steps": 5}, overrides=["seed=3", "--policy.optimizer.lr=1e-3"])
    assert (trainer.max_steps, trainer.seed) == (5, 3)
    assert trainer.policy.optimizer is not None
    assert trainer.policy.optimizer.lr == 1e-3
    with pytest.raises(RecipeError, match="did you mean seed"):
        load("quickstart", overrides=["sed=3"])


def test_recipes_are_shown_and_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "quickstart"]) == 0
    assert "algorithm:" in capsys.readouterr().out
    assert main(["recipes", "copy", "quickstart", "--directory", str(tmp_path)]) == 0
    assert (tmp_path / "quickstart.yaml").read_text() == shipped()["quickstart"].read_text()
    assert main(["recipes", "copy", "quickstart", "--directory", str(tmp_path)]) == 2
    assert main(["recipes", "show", "quikstart"]) == 2
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_help_lists_nested_keys_and_components(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--rollout.sampling.temperature  a number (default 1.0)" in told
    assert "--resume auto|best|PATH" in told
    assert main(["fit", "--reward.help"]) == 0
    assert "exact_match" in capsys.readouterr().out
    assert main(["fit", "--policy.optimizer.help", "adamw"]) == 0
    assert "--policy.optimizer.lr  a number (required)" in capsys.readouterr().out
    assert main(["fit", "--algorithm.help"]) == 0
    assert "algorithm takes an algorithm; " in capsys.readouterr().out
    assert main(["fit", "--policy.optimiser.help"]) == 2
    assert "did you mean optimizer?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("ppo", ("reward_norm.mean_level  one of 'group', 'batch', 'none' (default none)",)),
        ("ppo", ("--algorithm.lam  a number or the keys below (default 0.95)",)),
        ("ppo", ("--algorithm.critic_lam  a number or the keys below (default null)",)),
        ("dr_grpo", ("'group_rms', 'batch_rms' (default none)",)),
        ("icepop", ("one of 'mask', 'clamp' (default mask)", "lower  a number or null (default 0.5)")),
        ("kpop", ("rejection.metric  one of 'ratio', 'k1', 'k2', 'k3', 'binary_kl' (default binary_kl)",)),
        ("grpo", ("one of 'mask', 'clamp' (default clamp)", "overlong.buffer  an integer (required)")),
    ],
)  # fmt: skip
def test_help_of_a_component_gives_the_defaults_that_a_run_would_use(
    algorithm: str, expected: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--algorithm.help", algorithm]) == 0
    told = capsys.readouterr().out
    assert [part for part in expected if part not in told] == []


def test_a_working_directory_that_was_deleted_is_one_error(tmp_path: Path) -> None:
    command = f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m areal_lit"
    for arguments, code in (("validate --config quickstart", 2), ("--help", 0)):
        ran = subprocess.run(["sh", "-c", f"{command} {arguments}"], capture_output=True, text=True, timeout=60)
        assert ran.returncode == code, ran.stderr
        told = "" if code == 0 else "areal-lit: error: the working directory has been deleted; change to one that"
        assert ran.stderr.startswith(told)
        assert ran.stderr.count("\n") == bool(told)


def test_a_working_directory_deleted_under_a_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)

    def work() -> None:
        gone.rmdir()
        Path("runs").mkdir()

    assert guarded(work) == 1
    assert "(the working directory has been deleted; change to one that exists (cd))" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["recipes", "schema", "fit --help"])
def test_output_that_does_not_fit_is_told_in_a_line(arguments: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "areal_lit", *arguments.split()], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, timeout=60,
        )  # fmt: skip
    says = f"areal-lit {arguments.split()[0]}: error: [Errno 28] No space left on device: 'standard output'; free space"
    assert ran.returncode == 1
    assert re.fullmatch(re.escape(says) + ".*\n", ran.stderr)


@pytest.mark.parametrize(
    "arguments",
    ["schema --output", "recipes copy quickstart --directory", "plugins new my_own --kind reward --directory"],
)
def test_a_file_that_cannot_be_written_is_told_in_a_line(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "file").touch()
    assert main([*arguments.split(), f"{file}/below"]) == 1
    says = rf"areal-lit {arguments.split()[0]}: error: \[Errno 20\] Not a directory: '{file}/below.*'\n"
    assert re.fullmatch(says, capsys.readouterr().err)


def test_a_limit_on_open_files_is_told_with_how_to_raise_it(capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            os.open(os.devnull, os.O_RDONLY)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert guarded(work) == 1
    assert f"\n(open files: limit {soft} (at most {hard}); " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["recipes", "schema"])
def test_output_that_nobody_reads_any_more_is_no_failure(command: str) -> None:
    ran = subprocess.Popen(
        [sys.executable, "-m", "areal_lit", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    assert ran.stdout is not None
    ran.stdout.close()
    _, errors = ran.communicate(timeout=60)
    assert (ran.returncode, errors) == (0, b"")


def test_a_pipe_of_something_else_that_breaks_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "piping.py").write_text(
        "from areal_lit_launchers.inline import Inline\n"
        "class Piping(Inline):\n"
        "    @classmethod\n"
        "    def warm_up(cls, names): raise BrokenPipeError('of a process that ended')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "areal_lit", "fit", "--config", "quickstart", "--launcher", "piping.Piping"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "BrokenPipeError: of a process that ended" in ran.stderr


@pytest.mark.slow
def test_a_run_needs_no_standard_input_output_nor_error(tmp_path: Path) -> None:
    arguments = f"-m areal_lit fit --config quickstart --max_steps 1 --rollout.groups_per_step 2 --runs_dir {tmp_path}"
    ran = subprocess.run(["sh", "-c", f"exec {sys.executable} {arguments} <&- >&- 2>&-"], timeout=300)
    assert ran.returncode == 0
    assert (tmp_path / "quickstart" / "checkpoints" / "step-00000001" / "complete.json").exists()
