"""samples.jsonl: what is kept of a step, and that it is JSON whatever comes."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from areal_lit.cli.sample_text import headline
from areal_lit.run_records import Sample, SampleIndex
from areal_lit.testing import check_logger
from areal_lit.testing.filter import make_group
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example, Group, Prompt, StepScore
from areal_lit_algorithms.dpo import DPO
from areal_lit_loggers.samples import Samples


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_bytes().split(b"\n") if line]


def started(run_dir, step=0, **arguments):
    logger = Samples(**arguments)
    logger.setup(run_dir, {}, step)
    return logger


def test_keeps_the_contract(tmp_path):
    check_logger(Samples, tmp_path)


def test_a_record_says_what_happened(tmp_path):
    group = make_group((0.25,))
    trajectory = replace(
        group.trajectories[0], reward_parts={"format": 1.0}, versions=np.array([-1, 3, 3, 4]), stop_reason="length",
        turn_rewards=(0.5,), step_scores=(StepScore(last_token=1, value=1.0), StepScore(last_token=3, value=-2.0)),
    )  # fmt: skip
    logger = started(tmp_path)
    logger.samples(5, [replace(group, trajectories=(trajectory,))])
    logger.close("finished")
    assert records(tmp_path) == [
        {
            "step": 5,
            "source": "test",
            "prompt_id": 0,
            "sample": 0,
            "prompt": "1+1=",
            "completion": "2",
            "reward": 0.25,
            "unscored": "",
            "parts": {"format": 1.0},
            "turn_rewards": [0.5],
            "step_scores": [1.0, -2.0],
            "versions": [3, 4],
            "stop_reason": "length",
            "num_tokens": 4,
            "num_generated": 3,
            "column": "",
            "tokens": {"ids": [1, 2, 3], "logprobs": [-1.0, -1.0, -1.0], "versions": [[3, 2], [4, 1]]},
        }
    ]


def test_of_a_pair_from_data_each_side_is_named_and_no_logprob_is_made_up(tmp_path):
    fields = {"chosen": "2", "rejected": "3", "weight": 1.0}
    prompt = Prompt(prompt_id=4, source="pairs", row=4, epoch=0, example=Example(prompt="1+1=", fields=fields))
    codec = TextCodec(tiny_spec(tmp_path))
    sides = DPO().encode(prompt, codec)
    logger = started(tmp_path)
    logger.samples(1, [Group(prompt=prompt, trajectories=tuple(sides))])
    logger.close("finished")
    kept = records(tmp_path)
    assert [(each["completion"], each["column"]) for each in kept] == [("2", "chosen"), ("3", "rejected")]
    assert {logprob for each in kept for logprob in each["tokens"]["logprobs"]} == {None}
    assert ", pairs 4 sample 1 (rejected), " in headline(msgspec.json.decode(json.dumps(kept[1]), type=Sample))


def test_the_best_and_the_worst_come_first(tmp_path):
    logger = started(tmp_path, samples_per_group=2)
    logger.samples(1, [make_group((0.5, 0.1, None, 0.9, 0.3))])
    logger.close("finished")
    assert [record["reward"] for record in records(tmp_path)] == [0.1, 0.9]


def test_rate_and_limits(tmp_path):
    logger = started(tmp_path, every_steps=2, groups_per_step=2, samples_per_group=1)
    for step in range(1, 5):
        logger.samples(step, [make_group((1.0, 0.0), prompt_id=prompt_id) for prompt_id in range(3)])
    logger.close("finished")
    assert [(record["step"], record["prompt_id"]) for record in records(tmp_path)] == [(2, 0), (2, 1), (4, 0), (4, 1)]


def test_chat_prompts_and_odd_numbers_are_json(tmp_path):
    group = make_group((float("nan"), float("inf"), None))
    prompt = replace(
        group.prompt, example=replace(group.prompt.example, prompt=({"role": "user", "content": ["x", 1]},))
    )
    members = tuple(replace(trajectory, prompt=prompt, text="\ud83d\n\u2028") for trajectory in group.trajectories)
    logger = started(tmp_path, samples_per_group=3)
    logger.samples(1, [replace(group, prompt=prompt, trajectories=members)])
    logger.close("finished")
    lines = (tmp_path / "samples.jsonl").read_text().split("\n")
    assert len(lines) == 4
    found = [json.loads(line) for line in lines[:-1]]
    assert [record["reward"] for record in found] == [None, None, None]
    assert found[2]["unscored"] == "no verdict"
    assert found[0]["prompt"] == [{"role": "user", "content": "['x', 1]"}]
    index = SampleIndex(tmp_path / "samples.jsonl")
    index.refresh()
    assert [entry.read().completion for entry in index.entries] == ["?\n\u2028"] * 3


def test_long_texts_are_cut_in_the_middle(tmp_path):
    group = make_group((1.0,))
    members = (replace(group.trajectories[0], text="a" * 50 + "b" * 50),)
    logger = started(tmp_path, max_characters=10)
    logger.samples(1, [replace(group, trajectories=members)])
    logger.close("finished")
    assert records(tmp_path)[0]["completion"] == "aaaaa [... 90 characters ...] bbbbb"


def test_resuming_drops_later_and_torn_lines(tmp_path):
    logger = started(tmp_path)
    group = make_group((1.0,))
    odd = replace(group, trajectories=(replace(group.trajectories[0], text="\u2028\x85\r"),))
    for step in (1, 2, 3):
        logger.samples(step, [odd])
    logger.close("failed")
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"step": 2, "torn')
    resumed = started(tmp_path, step=2)
    resumed.samples(3, [make_group((0.0,))])
    resumed.close("finished")
    assert [(record["step"], record["reward"]) for record in records(tmp_path)] == [(1, 1.0), (2, 1.0), (3, 0.0)]


@pytest.mark.parametrize("argument", ["every_steps", "groups_per_step", "samples_per_group"])
def test_wrong_arguments_are_refused(argument):
    with pytest.raises(ValueError, match=f"{argument} must be >= 1, got 0"):
        Samples(**{argument: 0})


def test_files_move_aside_and_their_number_is_bounded(tmp_path):
    logger = started(tmp_path, samples_per_group=1, max_mib=0.001, num_files=2)
    for step in range(1, 51):
        logger.samples(step, [make_group((1.0,))])
    logger.close("finished")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.jsonl", "samples.jsonl.1"]
    assert all(path.stat().st_size <= 0.001 * 2**20 for path in tmp_path.iterdir())
    assert records(tmp_path)[-1]["step"] == 50


def test_resuming_cuts_files_that_moved_aside(tmp_path):
    logger = started(tmp_path, samples_per_group=1, max_mib=0.001, num_files=50)
    for step in range(1, 51):
        logger.samples(step, [make_group((1.0,))])
    logger.close("finished")
    started(tmp_path, step=20, samples_per_group=1, max_mib=0.001, num_files=50).close("finished")
    index = SampleIndex(tmp_path / "samples.jsonl")
    index.refresh()
    assert [entry.head.step for entry in index.entries] == list(range(1, 21))
    started(tmp_path, step=0).close("finished")
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]
    assert records(tmp_path) == []


def test_no_secret_is_logged_in_text_or_tokens(tmp_path):
    secret = "hf_" + "A1b2C3d4" * 4
    group = make_group((1.0,))
    prompt = replace(group.prompt, example=replace(group.prompt.example, prompt=f"use {secret}"))
    (member,) = group.trajectories
    leaking = replace(member, prompt=prompt, text=f"it is {secret}", reward=None, unscored=f"no access with {secret}")
    logger = started(tmp_path)
    logger.samples(1, [replace(group, prompt=prompt, trajectories=(leaking,))])
    logger.close("finished")
    (record,) = records(tmp_path)
    assert (record["prompt"], record["completion"]) == ("use ***", "it is ***")
    assert record["unscored"] == "no access with ***"
    assert record["tokens"] is None


def test_single_tokens_are_logged_of_the_drawn_and_up_to_a_limit(tmp_path):
    group = make_group((1.0,))
    tool = replace(group.trajectories[0], loss_mask=np.array([False, True, False, True]))
    logger = started(tmp_path, max_tokens=2)
    logger.samples(1, [replace(group, trajectories=(tool,))])
    logger.samples(2, [group])
    logger.close("finished")
    assert [record["tokens"] and record["tokens"]["ids"] for record in records(tmp_path)] == [[1, 3], None]
