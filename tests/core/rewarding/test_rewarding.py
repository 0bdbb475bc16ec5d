"""The reward pool: whatever a reward does, the others are scored and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reward_parts import Flaky, Loud, Ranks, Remote, Scripted, Sleepy, Unordered, metric, running, texts

from areal_lit.logs import Logs, rotated
from areal_lit.rewarding import RewardError, Rewarding, Scorer
from areal_lit.testing.reward import completion


async def test_each_trajectory_gets_its_own_reward_in_order(tmp_path: Path) -> None:
    reward = Scripted()
    with running(reward, tmp_path, batch_size=3) as scorer:
        scored, alone = await asyncio.gather(
            scorer.score(reward, texts(*"abcdefghij")), scorer.score(reward, texts("parts"))
        )
        assert [each.reward for each in scored] == [float(index) for index in range(10)]
        assert [each.text for each in scored] == list("abcdefghij")
        assert (alone[0].reward, alone[0].reward_parts, alone[0].metrics) == (2.0, {"a": 1.0}, {"b": 3.0})
        assert await scorer.score(reward, []) == []


@pytest.mark.parametrize("in_process", [False, True])
async def test_what_is_no_finite_number_is_unscored_and_counted(tmp_path: Path, in_process: bool) -> None:
    reward = Scripted()
    names = ("raise", "sys.exit", "nan", "inf", "none", "text", "list", "unscored")
    with running(reward, tmp_path, in_process=in_process) as scorer:
        *bad, good = await scorer.score(reward, texts(*names, "fine"))
        counts = {each.name: each.value for each in scorer.metrics()}
    kinds = [each.unscored.split(":")[0] for each in bad]
    assert kinds == ["error", "error", "invalid", "invalid", "invalid", "invalid", "invalid", "unscored"]
    assert all(each.reward is None for each in bad)
    assert "ZeroDivisionError" in bad[0].unscored
    assert (good.reward, good.unscored) == (8.0, "")
    assert counts["reward/unscored"] == 8
    assert (counts["reward/unscored_error"], counts["reward/unscored_invalid"]) == (2, 5)
    assert counts["reward/retries"] == 8


async def test_the_first_unscored_of_a_kind_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reward = Scripted()
    with running(reward, tmp_path, in_process=True, max_attempts=1) as scorer:
        await scorer.score(reward, texts("raise", "raise", "nan"))
    first, second = caplog.messages
    assert "reward 'default' has no value for row 0 of source 'test': error: ZeroDivisionError" in first
    assert "invalid: returned nan" in second


async def test_time_in_the_queue_does_not_count(tmp_path: Path) -> None:
    reward = Sleepy()
    with running(reward, tmp_path, num_workers=1, timeout_s=2.0) as scorer:
        scored = await scorer.score(reward, texts(*"abcdefghijkl"))
        assert [each.reward for each in scored] == [1.0] * 12
        assert metric(scorer, "reward/killed_workers") == 0


async def test_a_failed_call_is_tried_again_and_then_raised_if_asked(tmp_path: Path) -> None:
    flaky = Flaky()
    with running(flaky, tmp_path, on_failure="raise") as scorer:
        first = completion("x", marker=str(tmp_path / "marker"))
        assert (await scorer.score(flaky, [first]))[0].reward == 1.0
        assert metric(scorer, "reward/retries") == 1
    with running(flaky, tmp_path, on_failure="raise", max_attempts=1) as scorer:
        second = completion("x", marker=str(tmp_path / "other"))
        with pytest.raises(RewardError, match=r"'default'.*row 0 of source 'test'.*service unavailable"):
            await scorer.score(flaky, [second])


async def test_a_group_reward_sees_the_whole_group(tmp_path: Path) -> None:
    reward = Ranks()
    with running(reward, tmp_path, batch_size=1) as scorer:
        scored = await scorer.score(reward, texts("ccc", "a", "bb"))
    assert [each.reward for each in scored] == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [list, tuple, set, dict.fromkeys, iter])
async def test_scores_of_a_group_come_in_order_or_not_at_all(tmp_path: Path, kind: Callable[[Any], Any]) -> None:
    reward = Unordered()
    with running(reward, tmp_path, in_process=True, max_attempts=1) as scorer:
        scored = await scorer.score(reward, [completion("a", kind=kind), replace(completion("b"), sample=1)])
    if kind in (list, tuple):
        assert [each.reward for each in scored] == [0.0, 1.0]
    else:
        assert all("; return a list of scores, in order" in each.unscored for each in scored)


@pytest.mark.parametrize("in_process", [False, True])
async def test_async_rewards_run_on_the_loop_with_a_deadline(tmp_path: Path, in_process: bool) -> None:
    reward = Remote()
    with running(reward, tmp_path, in_process=in_process, timeout_s=0.1, max_attempts=1) as scorer:
        scored = await scorer.score(reward, texts("ok", "hang", "raise", "cancel", "exit", "late"))
        assert not (tmp_path / "reward.log").exists(), "no pool is needed"
    assert [each.reward for each in scored] == [1.0, *[None] * 5]
    assert [each.unscored.split(":")[0] for each in scored[1:]] == ["timeout", *["error"] * 4]


async def test_output_goes_to_a_capped_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reward = Loud()
    with running(reward, tmp_path, num_workers=1) as scorer:
        for _ in range(6):
            assert (await scorer.score(reward, texts("a")))[0].reward == 1.0
    logs = rotated(tmp_path / "reward.log")
    assert len(logs) == 3
    assert all(log.stat().st_size <= 4 * 2**20 for log in logs)
    assert "bytes of older output dropped" in logs[-1].read_text().partition("\n")[0]
    assert logs[-1].read_text().endswith("reward says hello\n")
    assert capfd.readouterr().out == ""


async def test_an_example_that_does_not_pickle_spoils_only_itself(tmp_path: Path) -> None:
    reward = Scripted()
    odd = completion("odd", check=lambda text: True)
    with running(reward, tmp_path) as scorer:
        scored = await scorer.score(reward, [*texts("a"), odd, *texts("b")])
    assert [each.reward for each in scored] == [0.0, None, 0.0]
    assert "cannot be sent" in scored[1].unscored


def test_a_reward_of_the_script_itself_is_refused_with_the_way_out(tmp_path: Path) -> None:
    local = type("Local", (Scripted,), {"__module__": "__main__"})
    for reward in (local(), type("Lost", (Scripted,), {})()):
        scorer = Scorer(Rewarding(), rewards={"default": reward}, in_process=False, log_dir=tmp_path, logs=Logs())
        with pytest.raises(ValueError, match=r"importable module.*inline launcher"):
            scorer.start()
        scorer.stop()


async def test_a_reward_of_the_script_itself_runs_inline(tmp_path: Path) -> None:
    reward = type("Local", (Scripted,), {"__module__": "__main__"})()
    with running(reward, tmp_path, in_process=True) as scorer:
        assert (await scorer.score(reward, texts("a")))[0].reward == 0.0


async def test_an_unknown_reward_is_refused(tmp_path: Path) -> None:
    with (
        running(Scripted(), tmp_path, in_process=True) as scorer,
        pytest.raises(ValueError, match="not among"),
    ):
        await scorer.score(Sleepy(), texts("a"))
