from __future__ import annotations

import pytest

from areal_lit.testing.reward import check_reward, completion
from areal_lit.types import Unscored
from areal_lit_rewards.reasoning_gym import ReasoningGym

reasoning_gym = pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


def test_gold_answers_score_1_and_others_less() -> None:
    cases = []
    for task in ("leg_counting", "chain_sum"):
        for entry in reasoning_gym.create_dataset(task, size=3, seed=7):
            fields = {"dataset": task, "entry": entry}
            cases += [
                (completion(f"I think <answer> {entry['answer']} </answer>", **fields), 1.0),
                (completion(f"<answer>{entry['answer']}</answer> no: <answer>x</answer>", **fields), 0.0),
                (completion("no answer", **fields), 0.0),
            ]
    check_reward(ReasoningGym(), cases)


def test_the_whole_completion_may_be_the_answer() -> None:
    (entry,) = reasoning_gym.create_dataset("chain_sum", size=1, seed=7)
    check_reward(
        ReasoningGym(answer_tag=None), [(completion(f" {entry['answer']}\n", dataset="chain_sum", entry=entry), 1.0)]
    )


def test_other_data_is_unscored_and_an_unknown_task_is_an_error() -> None:
    reward = ReasoningGym()
    reward.setup()
    score = reward.score(completion("1", answer="1"))
    assert isinstance(score, Unscored)
    assert "use the data reasoning_gym" in score.reason
    with pytest.raises(ValueError, match="no_such_task"):
        reward.score(completion("<answer>1</answer>", dataset="no_such_task", entry={}))
