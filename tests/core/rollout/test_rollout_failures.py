"""Rollouts that fail: retried, dropped, rejected, and the error that says why nothing came."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rollout_parts import Make, ScriptedEngine, bad_row, completion, ids, settings, values

from areal_lit.contracts import Filter, Reward, Source, Workflow
from areal_lit.hookspecs import hookimpl
from areal_lit.types import Completion, Example, GenerateRequest, Group, Prompt, Trajectory
from areal_lit_filters.equal_rewards import EqualRewards


def test_closed_admission_is_an_error_that_names_the_version(make: Make) -> None:
    loop = make(settings())
    loop.next_batch(0)
    with pytest.raises(RuntimeError, match=r"no group can be admitted for step 1.*version 0"):
        loop.next_batch(1)


def test_failed_episode_is_retried_with_its_seed_and_another_request_id(make: Make) -> None:
    def answer(request: GenerateRequest, count: int) -> None:
        if count == 1:
            raise OSError("hiccup")

    engine = ScriptedEngine(answer)
    loop = make(settings(), engine=engine)
    assert len(loop.next_batch(0)) == 4
    again = [r for r in engine.requests if r.seed == engine.requests[0].seed]
    assert len(again) == 2
    assert again[0].request_id != again[1].request_id
    assert values(loop)["rollout/retries"] == 1


def test_prompt_that_always_fails_is_dropped_and_counted(make: Make) -> None:
    loop = make(settings(), engine=ScriptedEngine(bad_row(2)))
    assert ids(loop.next_batch(0)) == [0, 1, 3, 4]
    numbers = values(loop)
    assert numbers["rollout/failed_episodes"] == 2
    assert numbers["rollout/retries"] == 4
    assert numbers["rollout/rejected/failed"] == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError("the client was closed"), SystemExit(3)])
def test_what_a_workflow_lets_out_cancels_no_episode(make: Make, error: BaseException) -> None:
    class Leaky(Workflow):
        async def run(self, prompt: Prompt, episode: Any) -> Trajectory:
            if prompt.row == 2:
                raise error
            completed = await episode.generate(episode.prompt_ids)
            return episode.trajectory(prompt, episode.prompt_ids, completed)

    loop = make(settings(), workflow=Leaky())
    assert ids(loop.next_batch(0)) == [0, 1, 3, 4]
    assert values(loop)["rollout/failed_episodes"] == 2


def test_a_workflow_that_cancels_its_own_task_is_named(make: Make) -> None:
    class CancelsItself(Workflow):
        async def run(self, prompt: Prompt, episode: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match=r"workflow CancelsItself cancelled its own task .* row \d of source 'data'"):
        make(settings(), workflow=CancelsItself()).next_batch(0)


def test_everything_failing_ends_the_run_with_the_cause(make: Make) -> None:
    def answer(request: GenerateRequest, count: int) -> None:
        raise ValueError("no such model")

    with pytest.raises(RuntimeError, match=r"failed for good.*no such model") as caught:
        make(settings(), engine=ScriptedEngine(answer)).next_batch(0)
    assert isinstance(caught.value.__cause__, ValueError)


def test_rollout_error_hook_decides_before_the_default(make: Make) -> None:
    class Strict:
        @hookimpl
        def rollout_error(self, error: BaseException) -> str:
            return "raise"

    with pytest.raises(ValueError, match="prompt too long"):
        make(settings(), engine=ScriptedEngine(bad_row(0)), plugins=[Strict()]).next_batch(0)


@pytest.mark.parametrize(("policy", "expected"), [("drop", [1, 2, 3, 4]), ("train", [0, 1, 2, 3])])
def test_partial_groups_follow_the_policy(make: Make, policy: str, expected: list[int]) -> None:
    async def score(reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
        return [
            replace(t, unscored="timeout") if t.prompt.prompt_id == 0 and t.sample == 0 else replace(t, reward=1.0)
            for t in trajectories
        ]

    batch = make(settings(partial_groups=policy), score=score).next_batch(0)
    assert ids(batch) == expected
    assert [t.unscored for t in batch[0].trajectories if t.unscored] == ["timeout"] * (policy == "train")


def test_failing_score_ends_the_run(make: Make) -> None:
    async def score(reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
        raise LookupError("the pool is gone")

    with pytest.raises(LookupError, match="the pool is gone"):
        make(settings(), score=score).next_batch(0)


def test_workflow_that_scores_itself_cannot_swallow_a_failing_score_by_retry(make: Make) -> None:
    class Scores(Workflow):
        async def run(self, prompt: Prompt, episode: Any) -> Trajectory:
            return await episode.score(episode.trajectory(prompt, episode.prompt_ids, completion("x")))

    async def score(reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
        raise LookupError("the pool is gone")

    with pytest.raises(LookupError, match="the pool is gone"):
        make(settings(), score=score, workflow=Scores()).next_batch(0)


@pytest.mark.parametrize("answer", [None, "False", float("nan"), 1])
def test_a_filter_that_answers_neither_true_nor_false_ends_the_run(make: Make, answer: Any) -> None:
    class Vague(Filter):
        def accept(self, group: Group) -> bool:
            return answer

    with pytest.raises(RuntimeError, match=f"Vague .* accept must return True or False, got {answer!r}, .*row 0"):
        make(settings(), filters=[Vague()]).next_batch(0)


def test_filters_reject_count_and_replace(make: Make) -> None:
    class EvenRows(Filter):
        def accept(self, group: Group) -> bool:
            return group.prompt.row % 2 == 0

    loop = make(settings(), filters=[EqualRewards(), EvenRows()])
    assert ids(loop.next_batch(0)) == [0, 2, 4, 6]
    numbers = values(loop)
    assert numbers["rollout/rejected/even_rows"] >= 3
    assert "rollout/rejected/equal_rewards" not in numbers


@pytest.mark.parametrize(
    ("prompt", "reason"), [("", "the prompt has no tokens"), ("\ud800", "cannot be encoded: UnicodeEncodeError")]
)
def test_a_prompt_that_is_no_prompt_is_named_by_its_row(make: Make, prompt: str, reason: str) -> None:
    examples = [Example(prompt=prompt)] * 9
    loop = make(settings(max_attempts=1, failure_budget=0.0), sources={"sums": Source(examples=examples)})
    with pytest.raises(RuntimeError, match=rf"row \d of source 'sums': .*{reason}"):
        loop.next_batch(0)


def test_zero_acceptance_ends_the_run_and_names_the_reasons(make: Make) -> None:
    loop = make(settings(max_rejected_groups=9, samples_per_group=1), filters=[EqualRewards()])
    with pytest.raises(RuntimeError, match=r"last 9 groups were all rejected \(equal_rewards 9\)"):
        loop.next_batch(0)


def test_a_reward_that_always_fails_is_what_the_error_names(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
        await asyncio.sleep(0.01)
        return [replace(t, reward=None, unscored="error: RuntimeError: no") for t in trajectories]

    loop = make(settings(max_rejected_groups=9), score=broken)
    reasons = r"last 9 groups .* \(failed 9; 9 of them unscored; last: error: RuntimeError: no\).*; mend the reward"
    with pytest.raises(RuntimeError, match=reasons):
        loop.next_batch(0)
    loop.stop()
    assert not caplog.messages, "the groups still in flight repeat nothing"


def test_engine_that_reports_old_versions_for_ever_ends_the_run(make: Make) -> None:
    loop = make(settings(max_rejected_groups=20))
    loop.next_batch(0)
    loop.set_version(1)
    with pytest.raises(RuntimeError, match=r"last 20 groups were all rejected \(stale 20\)"):
        loop.next_batch(1)


def test_veto_hooks_are_all_heard_and_slow_ones_named_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    class Slow:
        @hookimpl
        def rollout_admit(self, prompt: Prompt) -> bool:
            heard.append(prompt.prompt_id)
            end = asyncio.get_running_loop().time() + 0.006
            while asyncio.get_running_loop().time() < end:
                pass
            return prompt.prompt_id != 1

    class Judge:
        @hookimpl
        def rollout_admit(self, prompt: Prompt) -> bool:
            return prompt.prompt_id != 0

        @hookimpl
        def group_ready(self, group: Group) -> bool | None:
            return False if group.group_id == 3 else None

    with caplog.at_level(logging.WARNING):
        loop = make(settings(), plugins=[Slow(), Judge()])
        assert ids(loop.next_batch(0)) == [2, 4, 5, 6]
    assert heard[:2] == [0, 1]
    assert len([r for r in caplog.records if "rollout_admit" in r.message]) == 1
    numbers = values(loop)
    assert numbers["rollout/rejected/rollout_admit"] == 2
    assert numbers["rollout/rejected/group_ready"] == 1


def test_malformed_completion_is_the_engines_error(make: Make) -> None:
    broken = Completion(
        token_ids=np.zeros(3, np.int64), logprobs=np.zeros(2, np.float32), versions=np.zeros(3, np.int64),
        stop_reason="stop",
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="ScriptedEngine returned 3 tokens, 2 log-probs, 3 versions"):
        make(settings(max_attempts=1), engine=ScriptedEngine(lambda request, count: broken)).next_batch(0)


def test_the_share_of_the_failure_budget_that_is_used_is_reported(make: Make) -> None:
    def fails_once(request: GenerateRequest, count: int) -> None:
        if count == 1:
            raise ConnectionResetError("gone")

    loop = make(settings(failure_budget=0.5, max_attempts=1, partial_groups="train"), engine=ScriptedEngine(fails_once))
    loop.next_batch(0)
    assert values(loop)["rollout/failure_budget_used"] == pytest.approx(1 / (0.5 * 8))
