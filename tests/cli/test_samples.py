"""``areal-lit samples``: the browser driven by its keys, and what is printed where there is no terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from textual.pilot import Pilot
from textual.widgets import Footer, Input, Static

from areal_lit.cli.main import main
from areal_lit.cli.sample_browser import SampleBrowser
from areal_lit.cli.sample_browser.table import SampleTable
from areal_lit.run_records import RunRecords
from areal_lit_loggers.samples import Samples

SIZE = (140, 30)


def record(step: int, sample: int, reward: float | None, completion: str, **fields: Any) -> str:
    made = {
        "step": step, "source": "sums", "prompt_id": step, "sample": sample, "prompt": f"{step}+1=", "reward": reward,
        "completion": completion, "versions": [max(0, step - 2), step - 1], "stop_reason": "stop", "num_generated": 2,
        **fields,
    }  # fmt: skip
    return f"{json.dumps(made)}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four samples of two steps; the first two with tokens of the quickstart's vocabulary."""
    config = {"policy": {"model": {"path": "package:areal_lit_recipes/quickstart_model"}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    tokens = {"ids": [5, 12], "logprobs": [-0.01, -5.0], "versions": [[0, 1], [1, 1]]}
    (tmp_path / "samples.jsonl").write_text(
        record(1, 0, 0.0, "18", parts={"format": 1.0}, step_scores=[0.5, None], tokens=tokens)
        + record(1, 1, 1.0, "2", tokens=tokens)
        + record(2, 0, None, "three\x1b[31m", unscored="timeout: hung", stop_reason="length")
        + record(2, 1, 0.5, "3")
    )
    return tmp_path


async def settled(pilot: Pilot[None]) -> str:
    """Everything that the browser shows beside the list, once nothing is on its way."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    return "\n".join(str(static.render()) for static in pilot.app.query(Static))


def listed(app: SampleBrowser) -> list[str]:
    """The lines of the list as drawn."""
    table = app.query_one(SampleTable)
    lines = [table.render_line(y).text.split() for y in range(table.size.height)]
    return [" ".join(line) for line in lines if line]


def styles(app: SampleBrowser) -> dict[str, str]:
    """The colour of each differently coloured part of the sample that is shown."""
    (text,) = [static.content for static in app.query("#detail Static").results(Static)]
    return {text.plain[span.start : span.end]: str(span.style) for span in text.spans}


async def test_the_list_and_the_sample_under_the_cursor(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        shown = await settled(pilot)
        assert listed(app) == [
            "1 0 2 0 sums 1 0 stop", "1 1 2 0 sums 1 1 stop", "2 - 2 1 sums 2 0 length", "2 0.5 2 1 sums 2 1 stop"
        ]  # fmt: skip
        assert "4 of 4 samples" in shown
        assert "step 1, sums 1 sample 0, reward 0, 2 tokens, stop: stop, version 0, staleness 0\n" in shown
        assert "\nformat 1, steps 0.5 -\n" in shown
        assert "prompt\n1+1=\n\ncompletion\n18" in shown
        await pilot.press("down", "down")
        shown = await settled(pilot)
        assert "reward -, 2 tokens, stop: length, versions 0 to 1, staleness 1\nunscored: timeout: hung" in shown
        assert "three␛[31m" in shown, "what a terminal would obey is spelt out"
        await pilot.press("end", "up", "home", "j")
        assert "sample 1, reward 1," in await settled(pilot)


async def test_it_fits_80_columns(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert listed(app)[2] == "2 - 2 1 sums 2"
        assert app.query_one("#detail").size.width >= 40


async def test_every_key_is_in_the_footer(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        described = {key.description for key in app.query_one(Footer).query("FooterKey").results()}  # type: ignore[attr-defined]
        assert described == {"Filter", "Order", "Colours", "Group", "Follow", "Quit"}


async def test_filter_and_order(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"step:2", "enter")
        assert "2 of 4 samples" in await settled(pilot)
        await pilot.press("s")
        await settled(pilot)
        assert app.query_one("#query", Input).value == "step:2 sort:-reward"
        assert [line.split()[1] for line in listed(app)] == ["0.5", "-"]
        await pilot.press("slash", "home", "shift+end", *"step:x", "enter")
        assert "'step:x' is no range; write step:5, :5.., :..5 or :2..5" in await settled(pilot)
        await pilot.press("slash", "home", "shift+end", *"reward:7", "enter")
        assert "none of 4 samples matches; a query is written like this" in await settled(pilot)
        assert listed(app) == []


async def test_tokens_are_coloured_by_version_and_probability(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("t")
        assert "version 1 0\n18" in await settled(pilot)
        assert styles(app) | {"1": "yellow", "8": "green", " 0": "yellow", " 1": "green"} == styles(app)
        await pilot.press("t")
        assert "probability above 90% above 50% above 10% above 1% rarer\n18" in await settled(pilot)
        assert styles(app) | {"1": "default", "8": "red"} == styles(app)
        await pilot.press("end")
        assert "(no single tokens are kept of this sample" in await settled(pilot)
        await pilot.press("t", "home")
        assert "probability" not in await settled(pilot)


async def test_a_group_side_by_side(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("g")
        shown = await settled(pilot)
        assert "sample 0, reward 0" in shown
        assert "sample 1, reward 1" in shown
        assert len(app.query(".sample")) == 2
        await pilot.press("g")
        await settled(pilot)
        assert len(app.query(".sample")) == 1


async def test_following_goes_to_what_comes(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        with (run / "samples.jsonl").open("a") as file:
            file.write(record(3, 0, 0.75, "four"))
        await pilot.press("f")
        shown = await settled(pilot)
        assert "5 of 5 samples, following" in shown
        assert "completion\nfour" in shown


async def test_what_a_resumed_run_dropped_can_be_looked_at_until_the_list_is_read_again(run: Path) -> None:
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        resumed = Samples()
        resumed.setup(run, {}, 1)
        resumed.close("failed")
        await pilot.press("end", "g")
        assert "step 2, sums 2 sample 1, reward 0.5" in await settled(pilot)
        await pilot.press("slash", "enter")
        assert "2 of 2 samples" in await settled(pilot)


@pytest.mark.parametrize(
    ("file", "told"), [(None, "has no samples.jsonl; the logger `samples` writes it"), ("", "holds no sample yet")]
)
async def test_an_empty_run_says_what_to_do(run: Path, file: str | None, told: str) -> None:
    (run / "samples.jsonl").unlink()
    if file is not None:
        (run / "samples.jsonl").write_text(file)
    app = SampleBrowser(RunRecords(run))
    async with app.run_test(size=SIZE) as pilot:
        assert told in await settled(pilot)
        await pilot.press("down", "t", "g", "s", "f", "pagedown", "end")
        assert told in await settled(pilot)


async def test_a_long_list_draws_only_what_is_seen(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("".join(record(step, 0, 0.0, "x") for step in range(1, 20_001)))
    app = SampleBrowser(RunRecords(tmp_path))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("end")
        assert "step 20000," in await settled(pilot)
        assert listed(app)[-1].startswith("20000 0 2 1 sums 20000")
        assert len(listed(app)) == app.query_one(SampleTable).size.height


def test_without_a_terminal_it_prints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(run), "--print", "1", "reward:0.5.."]) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        "--- step 2, sums 2 sample 1, reward 0.5, 2 tokens, stop: stop, versions 0 to 1, staleness 1\n\n"
        "prompt\n2+1=\n\ncompletion\n3\n\n"
    )
    assert printed.err == "the last 1 of 2; --print 0 is all of them\n"
    assert main(["samples", str(run / "samples.jsonl")]) == 0
    assert capsys.readouterr().out.count("--- step") == 4


@pytest.mark.parametrize(("query", "rewards"), [("sort:-reward", [1.0, 0.5]), ("sort:reward", [0.0, 0.5])])
def test_of_an_order_that_was_asked_for_the_first_are_printed(
    query: str, rewards: list[float], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["samples", str(run), "--json", "--print", "2", query]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["reward"] for line in printed.out.splitlines()] == rewards
    assert printed.err == "the first 2 of 4; --print 0 is all of them\n"
    assert main(["samples", str(run), "--json", "--print", "0", query]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_json_has_a_record_per_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(run), "--json", "step:1"]) == 0
    first, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["parts"] == {"format": 1.0}
    assert first["tokens"]["versions"] == [[0, 1], [1, 1]]


def test_wrong_use_is_one_message(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samples", str(run), "sort:nothing"]) == 2
    assert "cannot sort by 'nothing'" in capsys.readouterr().err
    assert main(["samples", str(run), "--follow"]) == 2
    assert "--follow needs a terminal" in capsys.readouterr().err
    assert main(["samples", str(run / "none")]) == 2
    assert "holds no run: it has none of config.yaml, metrics.csv, samples.jsonl" in capsys.readouterr().err
    (run / "samples.jsonl").unlink()
    assert main(["samples", str(run)]) == 0
    assert "has no samples.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "samples.jsonl must be a file that can be read, and is not: Is a directory; move away what stands"),
        (b'{"step": 1, "prompt": 5}\n', "the line at byte 0 is no sample of areal-lit: Expected `str | array`"),
    ],
    ids=["a directory", "of another kind"],
)
def test_what_is_no_file_of_samples_is_told_with_its_path(
    tmp_path: Path, content: bytes | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "samples.jsonl"
    file.mkdir() if content is None else file.write_bytes(content)
    assert main(["samples", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"areal-lit samples: error: {tmp_path}")
    assert told in printed


def test_rubbish_is_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "samples.jsonl").write_bytes(bytes(range(256)) * 3)
    assert main(["samples", str(tmp_path)]) == 0
    assert "samples.jsonl holds no sample, and 3 lines of something else; move it away" in capsys.readouterr().err
