"""What waits for rollouts: deadlines, failures elsewhere, evaluations."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from rollout_parts import NUM_REQUESTS, Make, ScriptedEngine, bad_row, ids, never, pending_ids, settings, source

from areal_lit.activity import Activity
from areal_lit.contracts import ProcessDied
from areal_lit.types import GenerateRequest, Prompt, Sampling
from areal_lit_filters.equal_rewards import EqualRewards


def test_failure_told_by_a_watcher_ends_the_wait(make: Make) -> None:
    loop = make(settings(), engine=ScriptedEngine(never(once_asked=lambda: loop.fail(ProcessDied("engine-0 died")))))
    with pytest.raises(ProcessDied, match="engine-0 died"):
        loop.next_batch(0)
    with pytest.raises(ProcessDied):
        loop.next_batch(0)
    assert pending_ids(loop) == [0, 1, 2, 3], "what is to be saved is to be had still"


def test_wait_ends_at_its_deadline_and_says_where_things_stand(make: Make) -> None:
    engine = ScriptedEngine(never())
    loop = make(settings(wait_timeout_s=0.05), engine=engine)
    while len(engine.requests) < NUM_REQUESTS:  # a wait may end before the loop's thread has run at all
        with pytest.raises(TimeoutError, match="groups of step 0"):
            loop.next_batch(0)
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
    loop = make(settings(), engine=ScriptedEngine(never()))
    of = source(1)
    prompt = Prompt(prompt_id=0, source="eval", row=0, epoch=0, example=of.examples[0])
    with pytest.raises(TimeoutError, match=r"waited 0.1 s for the evaluation of 1 prompts \(evaluation.timeout_s\)"):
        loop.evaluate([(prompt, of)], samples=1, sampling=Sampling(), timeout_s=0.1)


def test_an_interrupted_evaluation_has_no_groups(make: Make) -> None:
    loop = make(settings(), engine=ScriptedEngine(never(once_asked=lambda: loop.interrupt(), num_requests=1)))
    of = source(1)
    prompt = Prompt(prompt_id=0, source="eval", row=0, epoch=0, example=of.examples[0])
    for _ in range(2):
        assert loop.evaluate([(prompt, of)], samples=1, sampling=Sampling(), timeout_s=20.0) is None


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
    waits = re.compile(r"waiting for 3 of 4 groups; 3 running, the oldest for \d+ s")
    assert any(waits.match(said) for said in words), words
    assert len(taken[0]) == 4
    assert activity.now() is None
