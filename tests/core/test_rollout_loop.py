"""The rollout loop on a scripted engine: admission, groups, retries, ends and resumes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
import pluggy
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from areal_lit.activity import Activity
from areal_lit.contracts import (
    Filter,
    InferenceBackend,
    Process,
    ProcessDied,
    ProcessSpec,
    Reward,
    Source,
    Workflow,
)
from areal_lit.hookspecs import HookSpecs, hookimpl
from areal_lit.prompts import PromptStream
from areal_lit.rollout import Rollout, RolloutDefaults, RolloutLoop, Warmup
from areal_lit.run.interrupts import Interrupts
from areal_lit.text import TextCodec
from areal_lit.types import (
    Completion,
    Example,
    GenerateRequest,
    Group,
    ModelSpec,
    Prompt,
    Sampling,
    Trajectory,
    WeightSource,
    merge_metrics,
)
from areal_lit_filters.equal_rewards import EqualRewards
from areal_lit_workflows.single_turn import SingleTurn


class LetterCodec(TextCodec):
    """Letters are tokens; counts how often a prompt was encoded."""

    def __init__(self) -> None:
        super().__init__(ModelSpec(path="letters"))
        self.num_encoded = 0

    def encode(self, text: str) -> np.ndarray:
        self.num_encoded += 1
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, token_ids: np.ndarray) -> str:
        return bytes(token_ids.astype(np.uint8)).decode()


class ScriptedEngine(InferenceBackend):
    """Answers with three tokens at the version it holds, unless ``answer`` says otherwise."""

    def __init__(self, answer: Callable[[GenerateRequest, int], Any] | None = None) -> None:
        self.answer = answer
        self.version = 0
        self.requests: list[GenerateRequest] = []

    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        return ()

    async def connect(self, processes: Sequence[Process]) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        count = len(self.requests)
        await asyncio.sleep(0)
        if self.answer is not None:
            answer = self.answer(request, count)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not None:
                return answer
        return completion("abc", version=self.version)

    async def update_weights(self, source: WeightSource) -> None:
        self.version = source.version

    async def pause(self, mode: str) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...


class Nothing(Reward):
    def score(self, trajectory: Trajectory) -> float:
        return 0.0


def completion(text: str, *, version: int = 0, stop_reason: Any = "stop") -> Completion:
    n = len(text)
    return Completion(
        token_ids=np.frombuffer(text.encode(), np.uint8).astype(np.int64), logprobs=np.full(n, -1.0, np.float32),
        versions=np.full(n, version, np.int64), stop_reason=stop_reason,
    )  # fmt: skip


async def by_sample(reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
    """The reward is the sample's index."""
    return [replace(t, reward=float(t.sample)) for t in trajectories]


def source(num: int, **keywords: Any) -> Source:
    return Source(examples=[Example(prompt=f"p{i}", fields={"row": i}) for i in range(num)], **keywords)


Make = Callable[..., RolloutLoop]


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds and starts loops, and ends them."""
    loops: list[RolloutLoop] = []

    def build(
        settings: Rollout, *, engine: InferenceBackend | None = None, sources: dict[str, Source] | None = None,
        plugins: Sequence[object] = (), shuffle: bool = False, **keywords: Any,
    ) -> RolloutLoop:  # fmt: skip
        manager = pluggy.PluginManager("areal_lit")
        manager.add_hookspecs(HookSpecs)
        for plugin in (RolloutDefaults(settings), *plugins):
            manager.register(plugin)
        sources = sources or {"data": source(100)}
        values: dict[str, Any] = {
            "backend": engine or ScriptedEngine(), "codec": LetterCodec(), "workflow": SingleTurn(), "score": by_sample,
            "reward": Nothing(), "filters": (), "seed": 7, "deterministic": False,
        }  # fmt: skip
        values.update(keywords)
        stream = PromptStream(sources, seed=7, shuffle=shuffle, num_epochs=settings.epochs)
        loop = RolloutLoop(settings, stream=stream, sources=sources, hooks=manager.hook, **values)
        loops.append(loop)
        loop.start()
        return loop

    yield build
    for loop in loops:
        loop.stop()


def settings(**keywords: Any) -> Rollout:
    values: dict[str, Any] = {"groups_per_step": 4, "samples_per_group": 2, "max_staleness": 0, "wait_timeout_s": 20.0}
    return Rollout(**{**values, **keywords})


def ids(groups: list[Group] | None) -> list[int]:
    assert groups is not None
    return [group.group_id for group in groups]


def values(loop: RolloutLoop) -> dict[str, float]:
    return {name: metric.value for name, metric in merge_metrics(loop.metrics()).items()}


def run_steps(loop: RolloutLoop, engine: ScriptedEngine, steps: range) -> list[list[Group]]:
    batches = []
    for step in steps:
        batch = loop.next_batch(step)
        assert batch is not None
        batches.append(batch)
        engine.version = step + 1
        loop.set_version(step + 1)
    return batches


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


def pending_ids(loop: RolloutLoop) -> list[int]:
    """Prompts that a checkpoint would give back."""
    return [place[0] for place in loop.state_dict()["stream"]["returned"]]


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


def test_closed_admission_is_an_error_that_names_the_version(make: Make) -> None:
    loop = make(settings())
    loop.next_batch(0)
    with pytest.raises(RuntimeError, match=r"no group can be admitted for step 1.*version 0"):
        loop.next_batch(1)


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


def bad_row(row: int) -> Callable[[GenerateRequest, int], None]:
    def answer(request: GenerateRequest, count: int) -> None:
        if request.token_ids.tolist() == [*f"p{row}".encode()]:
            raise ValueError("prompt too long")

    return answer


def test_prompt_that_always_fails_is_dropped_and_counted(make: Make) -> None:
    loop = make(settings(), engine=ScriptedEngine(bad_row(2)))
    assert ids(loop.next_batch(0)) == [0, 1, 3, 4]
    numbers = values(loop)
    assert numbers["rollout/failed_episodes"] == 2
    assert numbers["rollout/retries"] == 4
    assert numbers["rollout/rejected/failed"] == 1


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


def straggling(row: int, release: asyncio.Event) -> Callable[[GenerateRequest, int], Any]:
    async def wait() -> Completion:
        await release.wait()
        return completion("old", version=0)

    def answer(request: GenerateRequest, count: int) -> Any:
        return wait() if request.token_ids.tolist() == [*f"p{row}".encode()] and not release.is_set() else None

    return answer


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_straggler_that_grew_too_old_is_rolled_out_again_or_kept(make: Make, policy: str) -> None:
    release = asyncio.Event()
    engine = ScriptedEngine(straggling(0, release))
    loop = make(settings(max_staleness=1, stale_groups=policy), engine=engine)
    first = run_steps(loop, engine, range(3))
    assert 0 not in [i for batch in first for i in ids(batch)]

    async def let_go() -> None:
        release.set()
        await asyncio.sleep(0.05)

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


def test_resume_loses_and_repeats_nothing(make: Make) -> None:
    sources = {"a": source(7), "b": source(5, weight=0.5)}
    engine = ScriptedEngine()
    recipe = settings(max_staleness=2, when_exhausted="end")
    loop = make(recipe, engine=engine, sources=sources, shuffle=True)
    before = [(g.group_id, g.prompt.source, g.prompt.row) for b in run_steps(loop, engine, range(2)) for g in b]
    state = json.loads(json.dumps(loop.state_dict()))
    loop.stop()

    again = make(recipe, engine=engine, sources=sources, shuffle=True, version=2)
    again.load_state_dict(state)
    after = [(g.group_id, g.prompt.source, g.prompt.row) for g in again.next_batch(2)]
    assert again.next_batch(3) is None
    assert sorted(i for i, _, _ in before + after) == list(range(12))
    assert len({(name, row) for _, name, row in before + after}) == 12


def test_resume_with_other_groups_per_step_goes_on_at_the_same_step(make: Make) -> None:
    engine = ScriptedEngine()
    loop = make(settings(), engine=engine)
    run_steps(loop, engine, range(3))
    again = make(settings(groups_per_step=2), engine=engine, version=3)
    again.load_state_dict(loop.state_dict())
    assert ids(again.next_batch(3)) == [12, 13]


def test_deterministic_resume_asks_the_engine_for_the_same_samples(make: Make) -> None:
    sources = {"a": source(11), "b": source(7, weight=0.5)}
    recipe = settings(samples_per_group=3)
    whole, before, after = ScriptedEngine(), ScriptedEngine(), ScriptedEngine()
    run_steps(make(recipe, engine=whole, sources=sources, shuffle=True, deterministic=True), whole, range(5))
    loop = make(recipe, engine=before, sources=sources, shuffle=True, deterministic=True)
    run_steps(loop, before, range(2))
    again = make(recipe, engine=after, sources=sources, shuffle=True, deterministic=True, version=2)
    again.load_state_dict(json.loads(json.dumps(loop.state_dict())))
    after.version = 2
    run_steps(again, after, range(2, 5))
    asked = [[(r.token_ids.tolist(), r.seed) for r in engine.requests] for engine in (whole, before, after)]
    assert asked[0] == asked[1] + asked[2]


@hypothesis.settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def never() -> Callable[[GenerateRequest, int], Any]:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    return lambda request, count: wait()


def test_failure_told_by_a_watcher_ends_the_wait(make: Make) -> None:
    loop = make(settings(), engine=ScriptedEngine(never()))
    timer = threading.Timer(0.05, lambda: loop.fail(ProcessDied("engine-0 died")))
    timer.start()
    with pytest.raises(ProcessDied, match="engine-0 died"):
        loop.next_batch(0)
    timer.join()
    with pytest.raises(ProcessDied):
        loop.next_batch(0)
    assert pending_ids(loop) == [0, 1, 2, 3], "what is to be saved is to be had still"


def test_wait_ends_at_its_deadline_and_says_where_things_stand(make: Make) -> None:
    loop = make(settings(wait_timeout_s=0.05), engine=ScriptedEngine(never()))
    with pytest.raises(TimeoutError, match=r"groups of step 0.*0 groups are ready, 4 running"):
        loop.next_batch(0)


def test_stopped_loop_refuses_to_wait(make: Make) -> None:
    loop = make(settings())
    loop.stop()
    loop.stop()
    with pytest.raises(RuntimeError, match="does not run"):
        loop.next_batch(0)


def test_evaluation_is_not_held_back_and_counts_failures_as_unscored(make: Make) -> None:
    loop = make(settings(max_attempts=1), engine=ScriptedEngine(bad_row(1)), filters=[EqualRewards()])
    loop.next_batch(0)
    of = source(9)
    prompts = [
        (Prompt(prompt_id=i, source="eval", row=i, epoch=0, example=of.examples[i]), of) for i in (3, 1, 0)
    ]  # fmt: skip
    groups = loop.evaluate(prompts, samples=3, sampling=Sampling(max_new_tokens=8, temperature=0.0), timeout_s=20.0)
    assert ids(groups) == [3, 1, 0]
    assert [len(g.trajectories) for g in groups] == [3, 3, 3]
    assert groups[0].rewards == (0.0, 1.0, 2.0)
    assert groups[1].rewards == ()
    assert "prompt too long" in groups[1].trajectories[0].unscored
    assert groups[0].trajectories[0].temperature == 0.0


def test_evaluation_ends_at_its_deadline(make: Make) -> None:
    async def hang(request: GenerateRequest, count: int) -> None:
        await asyncio.sleep(60)

    loop = make(settings(), engine=ScriptedEngine(hang))
    of = source(1)
    prompt = Prompt(prompt_id=0, source="eval", row=0, epoch=0, example=of.examples[0])
    with pytest.raises(TimeoutError, match=r"waited 0.1 s for the evaluation of 1 prompts \(evaluation.timeout_s\)"):
        loop.evaluate([(prompt, of)], samples=1, sampling=Sampling(), timeout_s=0.1)


class SignalAt:
    """SIGTERM, on the event loop, when the n-th group was judged."""

    def __init__(self, n: int) -> None:
        self.left = n

    @hookimpl
    def group_ready(self, group: Group) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("n", range(1, 14))
def test_a_signal_at_any_time_loses_and_repeats_no_prompt(make: Make, n: int, max_staleness: int) -> None:
    engine = ScriptedEngine()
    loop = make(settings(max_staleness=max_staleness), engine=engine, plugins=[SignalAt(n)])
    trained: list[int] = []
    with Interrupts(loop.interrupt) as interrupts:
        interrupts.is_patient = True
        step = 0
        while not interrupts.requested and (batch := loop.next_batch(step)) is not None:
            trained += ids(batch)
            step += 1
            engine.version = step
            loop.set_version(step)
    assert interrupts.requested
    state = loop.state_dict()
    assert state["num_consumed"] == len(trained) == 4 * step
    assert sorted([*trained, *pending_ids(loop)]) == list(range(state["stream"]["next_id"]))


def test_an_interrupted_evaluation_has_no_groups(make: Make) -> None:
    loop = make(settings(), engine=ScriptedEngine(never()))
    of = source(1)
    prompt = Prompt(prompt_id=0, source="eval", row=0, epoch=0, example=of.examples[0])
    timer = threading.Timer(0.05, loop.interrupt)
    timer.start()
    for _ in range(2):
        assert loop.evaluate([(prompt, of)], samples=1, sampling=Sampling(), timeout_s=20.0) is None
    timer.join()


def test_groups_given_back_are_pending_again(make: Make) -> None:
    engine = ScriptedEngine()
    loop = make(settings(), engine=engine)
    run_steps(loop, engine, range(1))
    assert ids(loop.next_batch(1)) == [4, 5, 6, 7]
    loop.fail(OSError("elsewhere"))
    loop.give_back()
    assert pending_ids(loop) == [4, 5, 6, 7]
    assert loop.state_dict()["num_consumed"] == 4
    with pytest.raises(OSError, match="elsewhere"):
        loop.next_batch(1)
    loop.give_back()
    assert pending_ids(loop) == [4, 5, 6, 7], "a wait that fails at once has taken nothing"


def test_what_a_failing_filter_or_hook_was_asked_about_stays_pending(make: Make) -> None:
    class Fails(Filter):
        def accept(self, group: Group) -> bool:
            raise KeyError(group.prompt.row)

    loop = make(settings(), filters=[Fails()])
    with pytest.raises(RuntimeError, match=r"filter .*Fails \(no distribution\) raised KeyError: \d, on the group"):
        loop.next_batch(0)
    assert pending_ids(loop) == [0, 1, 2, 3]

    class Vetoes:
        @hookimpl
        def rollout_admit(self, prompt: Prompt) -> bool:
            raise KeyError(prompt.row)

    loop = make(settings(), plugins=[Vetoes()])
    with pytest.raises(KeyError):
        loop.next_batch(0)
    assert pending_ids(loop) == [0]


def test_an_interrupted_wait_has_no_batch_nor_any_after_it(make: Make) -> None:
    async def hang(request: GenerateRequest, count: int) -> None:
        await asyncio.sleep(60)

    loop = make(settings(), engine=ScriptedEngine(hang))
    timer = threading.Timer(0.05, loop.interrupt)
    timer.start()
    assert loop.next_batch(0) is None
    timer.join()
    assert loop.next_batch(0) is None
    assert pending_ids(loop) == [0, 1, 2, 3]
    loop.stop()
    loop.interrupt()


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


def test_malformed_completion_is_the_engines_error(make: Make) -> None:
    broken = Completion(
        token_ids=np.zeros(3, np.int64), logprobs=np.zeros(2, np.float32), versions=np.zeros(3, np.int64),
        stop_reason="stop",
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="ScriptedEngine returned 3 tokens, 2 log-probs, 3 versions"):
        make(settings(max_attempts=1), engine=ScriptedEngine(lambda request, count: broken)).next_batch(0)


def test_what_a_step_waits_for_is_told_while_it_waits(make: Make) -> None:
    gate, activity = threading.Event(), Activity()

    async def first_prompt_only(request: GenerateRequest) -> None:
        while request.token_ids.tolist() != [*b"p0"] and not gate.is_set():  # noqa: ASYNC110 - another thread opens it
            await asyncio.sleep(0.002)

    loop = make(settings(), engine=ScriptedEngine(lambda request, _: first_prompt_only(request)), activity=activity)
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(loop.next_batch(0)))
    thread.start()
    words: set[str] = set()
    while thread.is_alive() and not any(said.startswith("waiting for 3 of 4 groups; 3 running") for said in words):
        now = activity.now()
        words.add("" if now is None else now.what)
    gate.set()
    thread.join()
    assert any(said.startswith("waiting for 3 of 4 groups; 3 running, the oldest for 0 s") for said in words), words
    assert len(taken[0]) == 4
    assert activity.now() is None


def test_the_share_of_the_failure_budget_that_is_used_is_reported(make: Make) -> None:
    def fails_once(request: GenerateRequest, count: int) -> None:
        if count == 1:
            raise ConnectionResetError("gone")

    loop = make(settings(failure_budget=0.5, max_attempts=1, partial_groups="train"), engine=ScriptedEngine(fails_once))
    loop.next_batch(0)
    assert values(loop)["rollout/failure_budget_used"] == pytest.approx(1 / (0.5 * 8))


def test_steps_grow_and_the_bound_holds(make: Make) -> None:
    engine = ScriptedEngine()
    warm = settings(max_staleness=1, groups_per_step=6, groups_warmup=Warmup(start=2, steps=4, multiple_of=2))
    loop = make(warm, engine=engine)
    batches = run_steps(loop, engine, range(6))
    assert [len(batch) for batch in batches] == [2, 2, 4, 4, 6, 6]
    assert [i for batch in batches for i in ids(batch)] == list(range(24))
    staleness = [step - (group.oldest_version or 0) for step, batch in enumerate(batches) for group in batch]
    assert max(staleness) == 1
    assert loop.state_dict()["stream"]["next_id"] <= 24 + 6 + 6, "what versions 6 and 7 may train on"


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_resumed_within_a_warm_up_goes_on_with_its_sizes(make: Make, deterministic: bool) -> None:
    warm = settings(groups_per_step=5, groups_warmup=Warmup(start=1, steps=4), when_exhausted="end")
    engine = ScriptedEngine()
    whole = make(warm, engine=engine, deterministic=deterministic, sources={"data": source(30)})
    sizes = [len(batch) for batch in run_steps(whole, engine, range(6))]
    assert sizes == [1, 2, 3, 4, 5, 5]
    engine = ScriptedEngine()
    before = make(warm, engine=engine, deterministic=deterministic, sources={"data": source(30)})
    trained = [i for batch in run_steps(before, engine, range(2)) for i in ids(batch)]
    state = json.loads(json.dumps(before.state_dict()))
    after = make(warm, engine=engine, deterministic=deterministic, sources={"data": source(30)}, version=2)
    after.load_state_dict(state)
    batches = run_steps(after, engine, range(2, 6))
    assert [len(batch) for batch in batches] == sizes[2:]
    trained += [i for batch in batches for i in ids(batch)]
    assert sorted(trained) == list(range(20))


def test_lengths_grow_with_the_weights_and_evaluations_are_as_long_as_ever(make: Make) -> None:
    def budgets() -> list[int]:
        asked, engine.requests = engine.requests, []
        return sorted({request.sampling.max_new_tokens for request in asked})

    engine = ScriptedEngine()
    warm = settings(sampling=Sampling(max_new_tokens=9), length_warmup=Warmup(start=3, steps=3))
    short = source(50, sampling=Sampling(max_new_tokens=4))
    loop = make(warm, engine=engine, sources={"long": source(50), "short": short})
    seen = []
    for step in range(4):
        loop.next_batch(step)
        engine.version = step + 1
        seen.append((budgets(), values(loop)["rollout/max_new_tokens"]))
        loop.set_version(step + 1)
    assert [given for given, _ in seen] == [[3], [4, 5], [4, 7], [4, 9]]
    assert [mean for _, mean in seen] == [3, 4.5, 5.5, 6.5], "what the consumed groups were given"
    prompt = Prompt(prompt_id=0, source="eval", row=0, epoch=0, example=short.examples[0])
    other = make(warm, engine=engine, sources={"long": source(50)})
    budgets()
    assert other.evaluate([(prompt, short)], samples=1, sampling=warm.sampling, timeout_s=20.0) is not None
    assert budgets() == [9]


def test_lengths_are_not_reported_where_they_do_not_grow(make: Make) -> None:
    loop = make(settings())
    loop.next_batch(0)
    reported = values(loop)
    assert "rollout/max_new_tokens" not in reported
    assert reported["rollout/groups"] == 4
