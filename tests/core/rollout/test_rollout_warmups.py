"""Warm-ups of rollouts: steps and lengths that grow, over resumes too."""

from __future__ import annotations

import json

import pytest
from rollout_parts import Make, ScriptedEngine, ids, run_steps, settings, source, values

from areal_lit.rollout import Warmup
from areal_lit.types import Prompt, Sampling


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
    engine = ScriptedEngine()  # of its own: the first loop goes on admitting what its last version allows
    other = make(warm, engine=engine, sources={"long": source(50)})
    assert other.evaluate([(prompt, short)], samples=1, sampling=warm.sampling, timeout_s=20.0) is not None
    assert budgets() == [9]


def test_lengths_are_not_reported_where_they_do_not_grow(make: Make) -> None:
    loop = make(settings())
    loop.next_batch(0)
    reported = values(loop)
    assert "rollout/max_new_tokens" not in reported
    assert reported["rollout/groups"] == 4
