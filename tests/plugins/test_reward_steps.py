"""Scores of steps: where a step ends, in characters and in tokens, and what travels from there to the batch."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byte_level import byte_level_codec
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.batching import pack
from areal_lit.contracts import GroupReward, Reward
from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding, Scorer
from areal_lit.rewarding.calls import call, judge
from areal_lit.testing.reward import check_reward, completion
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Group, Scored, StepScore, Trajectory, Unscored
from areal_lit_rewards.composite import Composite
from areal_lit_rewards.exact_match import ExactMatch
from areal_lit_rewards.function import Function
from areal_lit_rewards.segmentation import step_ends, steps_of
from areal_lit_rewards.steps import Steps

TEXTS = st.text(st.sampled_from("1+on.\nA é中🙂"), max_size=30)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return byte_level_codec(tmp_path_factory.mktemp("byte_level"))


def talk(codec: TextCodec, *turns: str, is_ended: bool = True) -> Trajectory:
    """A prompt, then the policy's turns, each with an end token, and a tool's answer between two."""
    ids: list[int] = [3, 4]
    mask = [False, False]
    for index, turn in enumerate(turns):
        generated = [*codec.encode(turn), *([0] if is_ended else [])]
        ids += generated
        mask += [True] * len(generated)
        if index + 1 < len(turns):
            ids += [7, 8]
            mask += [False] * 2
    n = len(ids)
    return replace(
        completion("what a workflow says it is"), token_ids=np.array(ids), loss_mask=np.array(mask),
        logprobs=np.zeros(n, np.float32), versions=np.where(mask, 0, -1),
    )  # fmt: skip


def length_of(completion: str) -> float:
    return float(len(completion))


def right_sum(completion: str) -> float | Unscored:
    """1 for a true sum of two digits; a line without one cannot be scored."""
    try:
        terms, total = completion.strip().split("=")
        return float(sum(map(int, terms.split("+"))) == int(total))
    except ValueError:
        return Unscored(reason="no sum")


def ready(reward: Reward, codec: TextCodec) -> Reward:
    reward.use_codec(codec)
    reward.setup()
    return reward


def packed(trajectory: Trajectory, score: Scored) -> TokenBatch:
    scored = replace(trajectory, reward=score.value, step_scores=score.steps)
    return pack([Group(prompt=trajectory.prompt, trajectories=(scored,))])


@given(text=TEXTS, data=st.data())
def test_text_is_there_with_the_last_token_of_its_last_character(
    codec: TextCodec, text: str, data: st.DataObject
) -> None:
    if not text:
        return
    encoding = codec.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ends = data.draw(st.lists(st.integers(1, len(text)), min_size=1, max_size=4))
    expected = [max(i for i, (start, _) in enumerate(encoding["offset_mapping"]) if start < end) for end in ends]
    assert codec.last_tokens(np.array(encoding["input_ids"]), ends).tolist() == expected


@given(text=TEXTS, delimiter=st.sampled_from(["\n", r"\n\n", r"1\+", "[é.] ?", "(?<=.)"]))
def test_steps_are_the_text_in_order_and_none_is_blank(text: str, delimiter: str) -> None:
    ends = step_ends(text, delimiter)
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert "".join(pieces) == text
    assert all(re.sub(delimiter, "", piece).strip() for piece in pieces) or len(pieces) == 1
    assert {*ends[:-1]} <= {match.end() for match in re.finditer(delimiter, text)}
    contents = [part for part in re.split(delimiter, text) if part.strip()]
    assert len(pieces) == max(1, len(contents))


def test_a_score_lands_on_the_last_token_of_its_step(codec: TextCodec) -> None:
    trajectory = talk(codec, "é.\nA on\n\n\n中🙂")
    text, steps = steps_of(trajectory, codec, "\n")
    assert [step.text for step in steps] == ["é.\n", "A on\n\n\n", "中🙂"]
    decoded = [codec.decode(trajectory.token_ids[2 : step.last_token + 1]) for step in steps]
    assert decoded == ["é.\n", "é.\nA on\n\n\n", text]
    assert steps[-1].last_token == len(trajectory.token_ids) - 1  # the end token


def test_steps_go_through_all_turns_and_over_no_tool_token(codec: TextCodec) -> None:
    trajectory = talk(codec, "on\n1+", "A\n")
    _, steps = steps_of(trajectory, codec, "\n")
    assert [step.text for step in steps] == ["on\n", "1+A\n"]
    assert all(trajectory.loss_mask[step.last_token] for step in steps)
    reward = ready(Steps(step=Function(function=length_of)), codec)
    score = reward.score(trajectory)
    assert isinstance(score, Scored)
    batch = packed(trajectory, score)
    assert {t: batch["turn_reward"][t].item() for t in batch["turn_scored"].nonzero()[:, 0].tolist()} == {
        steps[0].last_token: 3.0, len(trajectory.token_ids) - 1: 4.0
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", " \n\n "])
def test_a_completion_without_steps_is_one(codec: TextCodec, text: str) -> None:
    trajectory = talk(codec, text)
    score = ready(Steps(step=Function(function=length_of)), codec).score(trajectory)
    assert isinstance(score, Scored)
    assert score.steps == (StepScore(last_token=len(trajectory.token_ids) - 1, value=float(len(text))),)
    nothing = talk(codec, "", is_ended=False)
    assert ready(Steps(step=Function(function=length_of)), codec).score(nothing) == Scored(
        value=0.0, metrics={"steps": 0.0}
    )


def test_steps_that_end_within_one_token_are_summed_there(codec: TextCodec) -> None:
    trajectory = talk(codec, "on on", is_ended=False)
    score = ready(Steps(step=Function(function=length_of), delimiter="o"), codec).score(trajectory)
    assert isinstance(score, Scored)
    batch = packed(trajectory, score)
    assert batch["turn_reward"].sum() == len("on on")


@pytest.mark.parametrize(("total", "value"), [("mean", 2 / 3), ("sum", 2.0), ("min", 0.0), ("last", 1.0)])
def test_each_step_is_scored_by_the_inner_reward(codec: TextCodec, total: str, value: float) -> None:
    reward = Steps(step=Function(function=right_sum), total=total)  # type: ignore[arg-type]
    lines = completion("1+1=2\n2+2=5\n\n3+3=6", codec=codec)
    check_reward(reward, [(lines, value), (completion("1+1=2\nwell", codec=codec), None)], codec=codec)
    score = ready(reward, codec).score(lines)
    assert isinstance(score, Scored)
    assert [step.value for step in score.steps] == [1.0, 0.0, 1.0]
    assert score.metrics == {"steps": 3.0}
    reason = ready(reward, codec).score(completion("1+1=2\nwell", codec=codec))
    assert reason == Unscored(reason="step 2 of 2: no sum")


def test_a_step_may_be_read_with_all_before_it(codec: TextCodec) -> None:
    reward = ready(Steps(step=Function(function=length_of), reads="prefix"), codec)
    score = reward.score(completion("on\nA\n", codec=codec))
    assert isinstance(score, Scored)
    assert [step.value for step in score.steps] == [3.0, 5.0]


def test_a_composite_weighs_the_steps_of_its_parts(codec: TextCodec) -> None:
    parts: dict[str, Reward] = {"steps": Steps(step=Function(function=length_of)), "right": ExactMatch()}
    reward = Composite(parts=parts, weights={"steps": 0.5})
    trajectory = completion("on\nA", codec=codec, answer="A")
    check_reward(reward, [(trajectory, 0.5 * 2.0)], codec=codec)
    score = ready(reward, codec).score(trajectory)
    assert isinstance(score, Scored)
    assert [step.value for step in score.steps] == [1.5, 0.5]


class Misplaced(Reward):
    def score(self, trajectory: Trajectory) -> Scored:
        return Scored(value=1.0, steps=(StepScore(last_token=len(trajectory.text), value=1.0),))


def test_a_step_that_ends_where_nothing_was_chosen_leaves_its_completion_unscored(codec: TextCodec) -> None:
    for text, where in (("", "at token 0 of 6"), ("x" * 6, "at token 6 of 6"), ("xx", "")):
        (outcome,) = call(Misplaced(), [replace(talk(codec, "on A"), text=text)])
        assert outcome.kind == ("invalid" if where else "")
        assert where in outcome.reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e19])
def test_a_score_that_cannot_be_trained_on_leaves_its_completion_unscored(value: float) -> None:
    outcome = judge(Scored(value=1.0, steps=(StepScore(last_token=0, value=0.5), StepScore(last_token=1, value=value))))
    assert (outcome.kind, outcome.steps) == ("invalid", ())
    assert "rewards must be within" in outcome.reason
    assert judge(Scored(value=1.0, steps=(0.5,))).kind == "invalid"  # type: ignore[arg-type]


@pytest.mark.slow
async def test_scores_of_steps_come_back_from_worker_processes(codec: TextCodec, tmp_path: Path) -> None:
    reward = Composite(parts={"steps": Steps(step=Function(function=length_of))})
    scorer = Scorer(
        Rewarding(num_workers=1), rewards={"default": reward}, in_process=False, log_dir=tmp_path, logs=Logs(),
        codec=codec,
    )  # fmt: skip
    scorer.start()
    try:
        (scored,) = await scorer.score(reward, [talk(codec, "é\nA")])
    finally:
        scorer.stop()
    assert [(step.last_token, step.value) for step in scored.step_scores] == [(4, 2.0), (5, 1.0)]


class Ranks(GroupReward):
    def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return [1.0] * len(trajectories)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"delimiter": ""}, "delimiter must match what ends a step"),
        ({"delimiter": "("}, r"delimiter is not a regular expression \(.*\), got '\('"),
        ({"total": "median"}, "total must be one of mean, sum, min, last, got 'median'"),
        ({"step": Ranks()}, r"step \(Ranks\) scores whole groups"),
    ],
)
def test_what_scores_no_steps_is_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Steps(**{"step": ExactMatch(), **arguments})  # type: ignore[arg-type]


def test_a_codec_loads_its_tokenizer_where_it_arrives(codec: TextCodec) -> None:
    codec.load()
    assert len(pickle.dumps(codec)) < 1000
    assert pickle.loads(pickle.dumps(codec)).decode(codec.encode("é")) == "é"
