"""The rollout loop on a scripted engine: admission, groups, retries, ends and resumes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from rollout_parts import (
    LetterCodec,
    Make,
    ScriptedEngine,
    completion,
    ids,
    pending_ids,
    run_steps,
    settings,
    source,
    straggling,
    values,
)

from areal_lit.contracts import Workflow
from areal_lit.hookspecs import hookimpl
from areal_lit.types import Completion, GenerateRequest, Group, Prompt, Sampling


def test_group_has_every_sample_scored_and_shares_its_prefix(make: Make) -> None:
    engine, codec = ScriptedEngine(), LetterCodec()
    loop = make(settings(), engine=engine, codec=codec)
    batch = loop.next_batch(0)
    assert ids(batch) == [0, 1, 2, 3]
    first = batch[0]
    assert [t.reward for t in first.trajectories] == [0.0, 1.0]
    assert [t.text for t in first.trajectories] == ["abc", "abc"]
    trajectory = first.trajectories[1]
    assert trajectory.token_ids.tolist() == [*b"p0abc"]
    assert trajectory.loss_mask.tolist() == [False, False, True, True, True]
    assert trajectory.logprobs.tolist() == [0, 0, -1, -1, -1]
    assert trajectory.versions.tolist() == [-1, -1, 0, 0, 0]
    assert codec.num_encoded == 4, "one encoding per group"
    assert len({r.request_id for r in engine.requests}) == len({r.seed for r in engine.requests}) == 8
    assert Counter(r.prefix_group for r in engine.requests).most_common()[0][1] == 2


def test_nothing_is_generated_before_the_first_batch_is_asked_for(make: Make) -> None:
    engine = ScriptedEngine()
    loop = make(settings(), engine=engine)
    loop.set_version(0)
    assert pending_ids(loop) == []
    assert engine.requests == []


def test_admission_runs_ahead_by_max_staleness_and_no_further(make: Make) -> None:
    engine = ScriptedEngine()
    loop = make(settings(max_staleness=2), engine=engine)
    for batch, step in zip(run_steps(loop, engine, range(6)), range(6), strict=True):
        assert ids(batch) == list(range(4 * step, 4 * step + 4))
        assert all(step - g.oldest_version <= 2 for g in batch if g.oldest_version is not None)
    assert max(pending_ids(loop)) < 4 * (6 + 2 + 1)


def test_interrupted_generation_goes_on_with_the_remaining_budget(make: Make) -> None:
    def answer(request: GenerateRequest, count: int) -> Completion:
        version = len(request.token_ids) - 2
        budget = request.sampling.max_new_tokens
        if budget == 1:
            return completion("z", version=version, stop_reason="length")
        return completion("" if count == 2 else "xy", version=version, stop_reason="interrupted")

    engine = ScriptedEngine(answer)
    recipe = settings(groups_per_step=1, samples_per_group=1, sampling=Sampling(max_new_tokens=5))
    trajectory = make(recipe, engine=engine).next_batch(0)[0].trajectories[0]
    assert trajectory.text == "xyxyz"
    assert trajectory.versions.tolist() == [-1, -1, 0, 0, 2, 2, 4]
    assert trajectory.stop_reason == "length"
    assert [r.sampling.max_new_tokens for r in engine.requests] == [5, 3, 3, 1]
    assert len({r.request_id for r in engine.requests}) == 1
    assert len({r.seed for r in engine.requests}) == 3, "a part draws other numbers than the one before it"


def test_interruption_at_the_very_end_of_the_budget_is_a_length_stop(make: Make) -> None:
    engine = ScriptedEngine(lambda request, count: completion("xy", stop_reason="interrupted"))
    recipe = settings(groups_per_step=1, samples_per_group=1, sampling=Sampling(max_new_tokens=2))
    assert make(recipe, engine=engine).next_batch(0)[0].trajectories[0].stop_reason == "length"
    assert len(engine.requests) == 1


def test_engine_that_only_interrupts_meets_the_deadline(make: Make) -> None:
    engine = ScriptedEngine(lambda request, count: completion("", stop_reason="interrupted"))
    recipe = settings(episode_timeout_s=0.02, max_attempts=1, failure_budget=0.0)
    with pytest.raises(RuntimeError, match=r"failure_budget.*episode_timeout_s"):
        make(recipe, engine=engine).next_batch(0)


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_straggler_that_grew_too_old_is_rolled_out_again_or_kept(make: Make, policy: str) -> None:
    release = asyncio.Event()
    engine = ScriptedEngine(straggling(0, release))
    loop = make(settings(max_staleness=1, stale_groups=policy), engine=engine)
    first = run_steps(loop, engine, range(3))
    assert 0 not in [i for batch in first for i in ids(batch)]

    async def let_go() -> None:
        release.set()
        for _ in range(50):  # turns of the event loop, more than the straggler takes to its end
            await asyncio.sleep(0)

    loop.run(let_go(), timeout_s=5, what="the release")
    rest = run_steps(loop, engine, range(3, 6))
    consumed = [g for batch in [*first, *rest] for g in batch]
    assert [g.group_id for g in consumed].count(0) == 1
    age = {g.group_id: s - g.oldest_version for s, b in enumerate([*first, *rest]) for g in b}[0]
    numbers = values(loop)
    if policy == "drop":
        assert age <= 1
        assert numbers["rollout/rejected/stale"] == 1
    else:
        assert age >= 3
        assert numbers["rollout/stale_kept"] == 1


def test_surplus_is_kept_for_the_next_step(make: Make) -> None:
    engine = ScriptedEngine()
    loop = make(settings(max_staleness=1), engine=engine)
    consumed = [i for batch in run_steps(loop, engine, range(5)) for i in ids(batch)]
    assert sorted(consumed) == list(range(20))


@pytest.mark.parametrize("deterministic", [False, True])
def test_data_that_ends_gives_a_last_smaller_batch_and_then_none(make: Make, deterministic: bool) -> None:
    engine = ScriptedEngine()
    loop = make(settings(num_epochs=2), engine=engine, sources={"data": source(5)}, deterministic=deterministic)
    assert [len(b) for b in run_steps(loop, engine, range(3))] == [4, 4, 2]
    assert loop.next_batch(3) is None
    assert loop.next_batch(3) is None


def test_deterministic_mode_orders_by_prompt_and_admits_only_for_a_waiting_step(make: Make) -> None:
    async def later(request: GenerateRequest) -> None:
        await asyncio.sleep(0.01 * (9 - request.token_ids[1] % 9))

    engine = ScriptedEngine(lambda request, count: later(request))
    loop = make(settings(), engine=engine, deterministic=True)
    for step in range(2):
        assert ids(loop.next_batch(step)) == list(range(4 * step, 4 * step + 4))
        engine.version = step + 1
        loop.set_version(step + 1)
        assert pending_ids(loop) == []


@hypothesis.settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), max_staleness=st.integers(0, 3), groups=st.integers(1, 5), resume=st.booleans())
def test_under_any_interleaving_nothing_is_lost_repeated_or_too_old(
    make: Make, seed: int, max_staleness: int, groups: int, resume: bool
) -> None:
    draw = random.Random(seed)

    async def wander(request: GenerateRequest) -> Completion:
        for _ in range(draw.choice([0, 1, 2, 40])):
            await asyncio.sleep(0)
        if draw.random() < 0.05:
            raise OSError("hiccup")
        reason = "interrupted" if draw.random() < 0.3 else "stop"
        return completion("a", version=engine.version, stop_reason=reason)

    engine = ScriptedEngine(lambda request, count: wander(request))
    recipe = settings(
        groups_per_step=groups, max_staleness=max_staleness, num_epochs=1, max_attempts=50,
        sampling=Sampling(max_new_tokens=6),
    )  # fmt: skip
    sources = {"a": source(23), "b": source(9, weight=2.0)}
    loop = make(recipe, engine=engine, sources=sources, shuffle=True)
    consumed: list[int] = []
    step = 0
    while (batch := loop.next_batch(step)) is not None:
        consumed += ids(batch)
        assert all(0 <= step - g.oldest_version <= max_staleness for g in batch if g.oldest_version is not None)
        step += 1
        engine.version = step
        loop.set_version(step)
        if resume and step == 3:
            state = json.loads(json.dumps(loop.state_dict()))
            loop.stop()
            loop = make(recipe, engine=engine, sources=sources, shuffle=True, version=step)
            loop.load_state_dict(state)
    assert sorted(consumed) == list(range(32))
    loop.stop()


def test_source_brings_its_own_workflow_reward_and_sampling(make: Make) -> None:
    class Never(Workflow):
        async def run(self, prompt: Prompt, episode: Any) -> None:
            return None

    engine = ScriptedEngine()
    sources = {
        "own": source(50, sampling=Sampling(max_new_tokens=9, temperature=0.5)),
        "dropped": source(50, workflow=Never()),
    }
    loop = make(settings(), engine=engine, sources=sources)
    batch = loop.next_batch(0)
    assert {g.prompt.source for g in batch} == {"own"}
    assert {t.temperature for g in batch for t in g.trajectories} == {0.5}
    assert {r.sampling.max_new_tokens for r in engine.requests} == {9}
    numbers = values(loop)
    assert numbers["rollout/dropped_episodes"] >= 6
    assert numbers["rollout/own/reward"] == 0.5


def test_metrics_are_exact_and_start_again(make: Make) -> None:
    engine = ScriptedEngine(lambda request, count: completion("ab", stop_reason="length"))
    loop = make(settings(max_staleness=1), engine=engine)
    run_steps(loop, engine, range(2))
    numbers = values(loop)
    assert numbers["rollout/reward"] == 0.5
    assert numbers["rollout/length"] == 2
    assert numbers["rollout/truncated"] == 1
    assert numbers["rollout/staleness_max"] == 1
    assert numbers["rollout/equal_rewards"] == 0
    assert "rollout/reward" not in values(loop)


def test_finished_groups_are_gathered_for_hooks_only(make: Make) -> None:
    class Listener:
        @hookimpl
        def rollout_finish(self, trainer: Any, group: Group) -> None: ...

    quiet, heard = make(settings()), make(settings(), plugins=[Listener()])
    quiet.next_batch(0)
    heard.next_batch(0)
    assert quiet.drain_finished() == []
    assert sorted(ids(heard.drain_finished())) == [0, 1, 2, 3]
    assert heard.drain_finished() == []
