"""preference_samples: pairs of what a run drew, as it was drawn; what is left out; who is held out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_lit.locks import RUN_LOCK, hold
from areal_lit.run_records import RecordsError
from areal_lit.testing.data import check_data
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_algorithms.dpo import DPO
from areal_lit_data.preference_samples import PreferenceSamples
from areal_lit_loggers.samples import Samples

SPREAD = {"0": 0.0, "1": 1.0}
"""Completions of a prompt with their rewards."""


class SourceRun:
    """A run's directory, filled by its logger as a run would."""

    def __init__(self, path: Path, codec: TextCodec, **logger: Any) -> None:
        self.path = path
        self.codec = codec
        self.num_drawn = 0
        self.logger = Samples(**{"groups_per_step": 100, "samples_per_group": 100, **logger})
        path.mkdir()
        self.logger.setup(path, {}, 0)

    def draw(self, prompt: Any, completions: Mapping[str, float | None], **changes: Any) -> None:
        """A step that trained on a prompt; completions are drawn character by character and end."""
        example = Example(prompt=prompt)
        self.num_drawn += 1
        drawn = Prompt(prompt_id=self.num_drawn, source="sums", row=0, epoch=0, example=example)
        start = self.codec.encode_prompt(example)
        trajectories = []
        for sample, (text, reward) in enumerate(completions.items()):
            ids = [*start, *drawn_ids(self.codec, text)]
            is_drawn = np.arange(len(ids)) >= len(start)
            made = Trajectory(
                token_ids=np.array(ids), loss_mask=is_drawn, logprobs=np.zeros(len(ids), np.float32),
                versions=np.where(is_drawn, 0, -1), prompt=drawn, text=text, sample=sample, reward=reward,
            )  # fmt: skip
            trajectories.append(replace(made, **changes))
        self.logger.samples(self.num_drawn, [Group(prompt=drawn, trajectories=tuple(trajectories))])


Started = Callable[..., SourceRun]


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(tiny_spec(tmp_path / "model"))


@pytest.fixture
def started(tmp_path: Path, codec: TextCodec) -> Iterator[Started]:
    """Makes runs, by name."""
    runs: list[SourceRun] = []

    def start(name: str = "run", codec: TextCodec = codec, **logger: Any) -> SourceRun:
        runs.append(SourceRun(tmp_path / name, codec, **logger))
        return runs[-1]

    yield start
    for run in runs:
        run.logger.close("finished")


def drawn_ids(codec: TextCodec, text: str) -> list[int]:
    return [*(int(codec.encode(character)[0]) for character in text), codec.end_token_ids[0]]


def pairs(data: PreferenceSamples) -> list[tuple[Any, str, str]]:
    """Prompt, better and worse completion of every pair, held-out ones included."""
    sides = {**{f"train {name}": source for name, source in data.train().items()}, **data.evaluation()}
    examples = [source.examples[i] for source in sides.values() for i in range(len(source.examples))]
    return [(each.prompt, each.fields["chosen_text"], each.fields["rejected_text"]) for each in examples]


def made(run: SourceRun, **arguments: Any) -> list[tuple[Any, str, str]]:
    data = PreferenceSamples(run=str(run.path), **{"eval_share": 0.0, **arguments})
    data.setup(run.codec)
    return pairs(data)


def test_keeps_the_contract(started: Started, codec: TextCodec) -> None:
    run = started()
    for a in range(30):
        run.draw(f"{a}+1=", SPREAD)
    check_data(lambda: PreferenceSamples(run=str(run.path), eval_share=0.3), codec)


def test_tokens_are_those_that_were_drawn(started: Started, codec: TextCodec) -> None:
    run = started()
    run.draw("5+6=", {"11": 1.0, "110": 0.5})
    data = PreferenceSamples(run=str(run.path), eval_share=0.0)
    data.setup(codec)
    example = data.train()["samples"].examples[0]
    prompt = Prompt(prompt_id=0, source="samples", row=0, epoch=0, example=example)
    chosen, rejected = DPO().encode(prompt, codec)
    for name, side, text, reward in (("chosen", chosen, "11", 1.0), ("rejected", rejected, "110", 0.5)):
        ids = drawn_ids(codec, text)
        assert ids[:-1] != codec.encode(text).tolist()  # encoded again they would be others
        assert side.token_ids[side.loss_mask].tolist() == ids
        assert side.token_ids[~side.loss_mask].tolist() == codec.encode("5+6=").tolist()
        assert side.text == text
        assert (example.fields[f"{name}_text"], example.fields[f"{name}_reward"]) == (text, reward)


def test_the_best_meet_the_worst_over_all_epochs(started: Started) -> None:
    run = started()
    run.draw("1+1=", {"3": 0.0, "4": 0.0, "3?": 0.25})
    run.draw("2+2=", {"4": 1.0, "04": 1.0})
    run.draw("1+1=", {"2": 1.0, "02": 1.0, "3": 0.0})
    run.draw("3+3=", {"5": 0.25, "7": 0.0})
    assert made(run) == [("1+1=", "2", "3"), ("3+3=", "5", "7")]
    assert made(run, margin=0.25) == [("1+1=", "2", "3")]
    every = [("1+1=", "2", "3"), ("1+1=", "02", "4"), ("3+3=", "5", "7")]
    assert made(run, pairs_per_prompt=2) == made(run, pairs_per_prompt=9) == every
    assert made(run, max_examples=1) == every[:1]


def test_what_cannot_be_compared_is_left_out_and_counted(started: Started, caplog: pytest.LogCaptureFixture) -> None:
    run = started(max_tokens=4)
    run.draw("1+1=", {"2": 1.0, "5": 0.5, "9999": 0.0})
    run.draw("1+1=", {"3": 0.0}, stop_reason="length")
    run.draw("1+1=", {"4": None}, unscored="no answer")
    with caplog.at_level(logging.WARNING):
        assert made(run) == [("1+1=", "2", "5")]
    for told in ("1 of 5 without their tokens", "1 of 5 cut off by their budget", "1 of 5 without a reward"):
        assert told in caplog.text


def test_a_prompt_is_on_one_side_whatever_the_run(started: Started) -> None:
    def held_out(run: SourceRun) -> tuple[set[Any], set[Any]]:
        data = PreferenceSamples(run=str(run.path), eval_share=0.3, pairs_per_prompt=2)
        data.setup(run.codec)
        sides = (data.train()["samples"], data.evaluation()["samples"])
        train, evaluation = ({source.examples[i].prompt for i in range(len(source.examples))} for source in sides)
        return train, evaluation

    prompts = [f"{a}+1=" for a in range(100)]
    short, long = started("short"), started("long", max_mib=0.01, num_files=99)
    for prompt in prompts[43:63]:
        short.draw(prompt, {"0": 0.0, "1": 1.0, "2": 1.0, "3": 0.0})
    for prompt in [*prompts, *prompts]:
        long.draw(prompt, SPREAD)
    assert len(list(long.path.glob("samples.jsonl*"))) > 2
    train, evaluation = held_out(long)
    assert train | evaluation == set(prompts)
    assert not train & evaluation
    assert 15 <= len(evaluation) <= 45
    assert held_out(short) == (train & set(prompts[43:63]), evaluation & set(prompts[43:63]))


def test_chats_are_read_with_the_template_of_the_run(started: Started, codec: TextCodec) -> None:
    run = started(codec=TextCodec(codec.spec, template_kwargs={"enable_thinking": False}))
    prompt = ({"role": "system", "content": "add"}, {"role": "user", "content": "1+1="})
    run.draw(prompt, SPREAD)
    assert made(run) == [(prompt, "1", "0")]
    run.codec = codec
    with pytest.raises(ValueError, match=r"none of its 1 pairs .* prompt .* has 14 tokens here and 20 in the run, "):
        made(run)


def test_pairs_of_another_template_or_cut_for_people_are_left_out(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(max_characters=4)
    run.draw("1+1=", SPREAD)
    run.draw("111+111=", SPREAD)
    run.draw("2+1=", {"3": 1.0, "33333": 0.0})
    with caplog.at_level(logging.WARNING):
        assert made(run) == [("1+1=", "1", "0")]
    assert "left out 2 of 3 pairs: prompt '11 [... 4 characters ...] 1=' has " in caplog.text


def fill(run: SourceRun, steps: Sequence[Mapping[str, float | None]]) -> None:
    for number, completions in enumerate(steps):
        run.draw(f"{number}+1=", completions)


@pytest.mark.parametrize(
    ("steps", "arguments", "told"),
    [
        (
            [{"1": 1.0, "2": 1.0}, {"3": 0.0}, {"4": 0.0, "5": 0.5}, {"6": 1.0, "06": 1.0}], {"margin": 0.5},
            "of 4 prompts none has .* differ by more than margin 0.5: 2 with all 1, 1 with 0 alone, 1 with from 0 to "
            "0.5; lower margin, let the run's logger samples keep more",
        ),
        ([{"1": None}], {}, "no completion can be compared: 1 of 1 without a reward; choose another run"),
        ([], {}, r"samples.jsonl holds no samples; the logger samples writes them"),
        ([SPREAD], {"eval_share": 0.01}, "of 1 pairs 1 are left for training and 0 for evaluation with eval_share 0.0"),
        ([SPREAD], {"max_prompt_tokens": 1}, "all 1 prompts are longer than max_prompt_tokens=1"),
    ],
)  # fmt: skip
def test_a_run_that_makes_no_pair_says_why(
    started: Started, steps: Sequence[Mapping[str, float | None]], arguments: Any, told: str
) -> None:
    run = started()
    (run.path / "config.yaml").touch()
    fill(run, steps)
    with pytest.raises(ValueError, match=told):
        made(run, **arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"margin": -1.0}, "margin must be >= 0, got -1.0"),
        ({"margin": float("nan")}, "margin must be >= 0, got nan"),
        ({"pairs_per_prompt": 0}, "pairs_per_prompt must be >= 1, got 0"),
        ({"eval_share": 1.0}, r"eval_share must be in \[0, 1\), got 1.0"),
        ({"max_examples": 0}, "max_examples must be >= 1, got 0"),
    ],
)
def test_arguments_are_checked(arguments: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PreferenceSamples(run="runs/any", **arguments)


def test_runs_are_named_where_there_is_none(started: Started, tmp_path: Path) -> None:
    fill(started("other"), [SPREAD])
    with pytest.raises(RecordsError, match=r"mistyped holds no run: .*; there are \S+/other"):
        PreferenceSamples(run=str(tmp_path / "mistyped")).preview()


def test_a_run_that_goes_on_is_waited_for(started: Started) -> None:
    run = started()
    fill(run, [SPREAD])
    with (
        hold(run.path / RUN_LOCK),
        pytest.raises(ValueError, match=r"/run still goes on, .*; wait for its end, or copy"),
    ):
        made(run)
    assert made(run) == [("0+1=", "1", "0")]
