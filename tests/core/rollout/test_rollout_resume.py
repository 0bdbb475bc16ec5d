"""Rollouts that are resumed or interrupted: no prompt is lost, none comes twice."""

from __future__ import annotations

import json
import os
import signal

import pytest
from rollout_parts import Make, ScriptedEngine, ids, never, pending_ids, run_steps, settings, source

from areal_lit.contracts import Filter
from areal_lit.hookspecs import hookimpl
from areal_lit.run.interrupts import Interrupts
from areal_lit.types import Group, Prompt


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
    loop = make(settings(), engine=ScriptedEngine(never(once_asked=lambda: loop.interrupt())))
    assert loop.next_batch(0) is None
    assert loop.next_batch(0) is None
    assert pending_ids(loop) == [0, 1, 2, 3]
    loop.stop()
    loop.interrupt()
