from __future__ import annotations

from pathlib import Path

import pytest

from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding, Scorer
from areal_lit.testing.reward import check_reward, completion
from areal_lit_rewards.math import Math


def test_equivalent_expressions_score_1() -> None:
    check_reward(
        Math(),
        [
            (completion("so we get 72", answer="72"), 1.0),
            (completion("The answer is \\boxed{\\frac{1}{2}}.", answer="1/2"), 1.0),
            (completion("$0.5$", answer="\\frac{1}{2}"), 1.0),
            (completion("$1 + x^2$", answer="x^2+1"), 1.0),
            (completion("\\boxed{1,234}", answer=1234), 1.0),
            (completion("it is 12", answer=["11", "12"]), 1.0),
            (completion("first 72, then 71", answer="72"), 0.0),
            (completion("I do not know", answer="72"), 0.0),
            (completion("$6.28$", answer="2\\pi"), 0.0),
            (completion("2", answer="2\\pi"), 0.0),
            (completion("$3x + 1$", answer="3x+1"), 1.0),
            (completion("\\boxed{5}", answer="5 \\text{ cm}"), 1.0),
            (completion("72", answer="seventy-two"), None),
            (completion("72", answer="???"), None),
            (completion("72", answer=""), None),
            (completion("72", solution="72"), None),
        ],
    )


def test_original_gsm8k_solutions_are_read_by_pattern() -> None:
    solution = "He buys 48/2=<<48/2=24>>24 eggs.\n#### 1,072"
    right, wrong = completion("so 1072", answer=solution), completion("so 24", answer=solution)
    check_reward(Math(answer_pattern=r"####\s*(.+)"), [(right, 1.0), (wrong, 0.0), (completion("1", answer="1"), None)])


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="add parentheses"):
        Math(answer_pattern="#### .+")
    with pytest.raises(ValueError, match="float_rounding must be >= 0, got -1"):
        Math(float_rounding=-1)


@pytest.mark.slow
async def test_hostile_expressions_end_with_their_worker_only(tmp_path: Path) -> None:
    hostile = ["$9^{9^{9^{9}}}$", "\\boxed{99999999!}", "$" + "(" * 3000 + "1" + ")" * 3000 + "$"]
    texts = [text for each in hostile for text in (each, "it is 3")]
    reward = Math()
    scorer = Scorer(
        Rewarding(timeout_s=6.0, max_attempts=1),
        rewards={"math": reward},
        in_process=False,
        log_dir=tmp_path,
        logs=Logs(),
    )
    scorer.start()
    try:
        scored = await scorer.score(reward, [completion(text, answer="3") for text in texts])
    finally:
        scorer.stop()
    assert [each.reward for each in scored[1::2]] == [1.0] * len(hostile)
    assert all(each.reward is None and each.unscored for each in scored[::2])
