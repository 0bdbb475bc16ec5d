"""A trained reward model as a reward: its scores are the model's own, and what cannot score is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from areal_lit import recipes
from areal_lit.models import SCALAR_HEAD_FILE, load_causal_lm
from areal_lit.testing.reward import check_reward, completion
from areal_lit.testing.strategy_case import PlainSGD
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import ModelSpec, Trajectory
from areal_lit.validation import broken_rules
from areal_lit_rewards.process_reward_model import ProcessRewardModel
from areal_lit_rewards.reward_model import RewardModel
from areal_lit_single.strategy import Single

QUICKSTART = "package:areal_lit_recipes/quickstart_model"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    directory = tmp_path_factory.mktemp("reward_model")
    strategy = Single()
    strategy.setup(tiny_spec(directory / "tiny"), head="score", optimizer=PlainSGD(lr=0.1))
    (directory / "hf").mkdir()
    strategy.export_hf(directory / "hf")
    return ModelSpec(path=str(directory / "hf"))


def samples() -> list[Trajectory]:
    """Of one prompt, as ragged as an episode leaves them; one is longer than a small micro-batch."""
    rng = np.random.default_rng(0)
    made = []
    for sample, num_generated in enumerate((4, 9, 1, 30, 9)):
        ids = np.concatenate([[5, 6], rng.integers(2, 60, num_generated)])
        generated = np.arange(len(ids)) > 1
        trajectory = replace(completion("1" * len(ids)), token_ids=ids, loss_mask=generated, sample=sample)
        made.append(replace(trajectory, columns={"undeclared": 1.0}))
    return made


def expected_scores(spec: ModelSpec) -> list[float]:
    """By the plain Hugging Face model and the head's own file, one sequence at a time."""
    from safetensors.torch import load_file

    model, head = load_causal_lm(spec), load_file(Path(spec.path) / SCALAR_HEAD_FILE)
    scores = []
    with torch.no_grad():
        for trajectory in samples():
            hidden_TD = model.base_model(input_ids=torch.tensor(trajectory.token_ids)[None]).last_hidden_state[0]
            scores.append(float(hidden_TD[-1] @ head["weight"][0] + head["bias"][0]))
    return scores


@pytest.mark.parametrize("max_tokens", [16384, 33])
def test_scores_are_the_models_own(exported: ModelSpec, max_tokens: int) -> None:
    expected = expected_scores(exported)
    assert np.std(expected) > 1e-3
    reward = RewardModel(model=exported, max_tokens_per_microbatch=max_tokens)
    check_reward(reward, list(zip(samples(), expected, strict=True)))
    reward.setup()
    assert reward.score(samples()[3]) == pytest.approx(expected[3], abs=1e-6)


def test_a_step_is_scored_as_if_the_completion_ended_there(exported: ModelSpec) -> None:
    codec = TextCodec(exported)
    members = [completion(text, "1", codec=codec) for text in ("1+1\n11\nthe end", "in")]
    reward = ProcessRewardModel(model=exported)
    reward.use_codec(codec)
    reward.setup()
    for trajectory, score in zip(members, reward.score_group(members), strict=True):
        steps = len(trajectory.text.split("\n"))
        assert score.steps[-1].last_token == len(trajectory.token_ids) - 1
        lasts = [step.last_token + 1 for step in score.steps]
        cut = [
            replace(trajectory, token_ids=trajectory.token_ids[:n], loss_mask=trajectory.loss_mask[:n]) for n in lasts
        ]
        assert [step.value for step in score.steps] == pytest.approx(reward_of(exported, cut), abs=1e-6)
        assert (len(lasts), score.value) == (steps, score.steps[-1].value)
    check_reward(reward, [(members[1], reward.score_group(members)[1].value)], codec=codec)


def reward_of(spec: ModelSpec, trajectories: list[Trajectory]) -> list[float]:
    reward = RewardModel(model=spec)
    reward.setup()
    return [float(score) for score in reward.score_group(trajectories)]  # type: ignore[arg-type]


def test_a_model_without_a_head_is_refused(tmp_path: Path, exported: ModelSpec) -> None:
    for path in (QUICKSTART, str(Path(exported.path).parent / "tiny")):
        with pytest.raises(ValueError, match=rf"holds no {SCALAR_HEAD_FILE}, .* algorithm reward_model wrote"):
            RewardModel(model=ModelSpec(path=path, config=tiny_spec(tmp_path).config)).setup()
    with pytest.raises(ValueError, match=r"model.path: .*nowhere.* does not exist"):
        RewardModel(model=ModelSpec(path="./nowhere")).setup()


def test_what_cannot_score_is_told_before_anything_starts(exported: ModelSpec) -> None:
    def rules(path: str, policy: str = QUICKSTART) -> list[str]:
        reward = f"reward={{class_path: reward_model, init_args: {{model: {{path: '{path}'}}}}}}"
        trainer = recipes.load("quickstart", overrides=[reward, f"policy.model.path={policy}"])
        return [rule for rule in broken_rules(trainer) if rule.startswith("reward:")]

    (other,) = rules(exported.path)
    assert "has another vocabulary than policy.model 'package:areal_lit_recipes/quickstart_model'" in other
    assert rules(exported.path, policy=exported.path) == []
    (headless,) = rules(QUICKSTART)
    assert f"holds no {SCALAR_HEAD_FILE}" in headless
