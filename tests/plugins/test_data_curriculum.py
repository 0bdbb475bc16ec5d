"""Curriculum: what comes again and how often; that nothing is forgotten; that it helps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit import recipes
from areal_lit.contracts import DataModule, Source
from areal_lit.prompts import PromptStream
from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_data.curriculum import Curriculum, Learnability
from areal_lit_data.mixture import Mixture, MixtureSource


def sampler(**changed: float) -> Learnability:
    return Learnability(**{"exploration": 0.5, "threshold": 0.5, "memory": 0.5, **changed})


def choices(sampler: Learnability, num: int) -> Counter[int | None]:
    """What is chosen if every outcome is as before."""
    counts: Counter[int | None] = Counter()
    for seed in range(num):
        row = sampler.choose(seed)
        counts[row] += 1
        if row is not None:
            sampler.observe(row, [1.0] * (row) + [0.0] * (8 - row))
    return counts


def test_keeps_the_contract(tmp_path):
    codec = TextCodec(tiny_spec(tmp_path))
    check_data(lambda: Curriculum(data=Arithmetic(num_examples=30)), codec)
    check_data(lambda: Mixture(sources={"sums": MixtureSource(data=Curriculum(data=Arithmetic()))}), codec)


def test_rows_come_again_in_proportion_to_the_variance_of_their_success():
    rows = sampler(exploration=0.2, memory=0.0)
    for row in range(9):
        rows.observe(row, [1.0] * row + [0.0] * (8 - row))
    counts = choices(rows, 40_000)
    assert counts[0] == counts[8] == 0
    assert counts[None] / 40_000 == pytest.approx(0.2, abs=0.01)
    total = sum(row * (8 - row) for row in range(9))
    for row in range(1, 8):
        assert counts[row] / (40_000 - counts[None]) == pytest.approx(row * (8 - row) / total, rel=0.06)


def test_earlier_groups_count_as_memory_says():
    kept, forgotten = sampler(memory=0.5), sampler(memory=0.0)
    for rows in (kept, forgotten):
        rows.observe(3, [1.0, 0.4, 0.5, 0.0])
        rows.observe(3, [1.0, 1.0, 1.0, 1.0])
    assert kept.state_dict()["counts"] == [[3, 5.0, 6.0]]
    assert forgotten.state_dict()["counts"] == [[3, 4.0, 4.0]]
    assert choices(forgotten, 100).keys() == {None}
    assert 3 in choices(kept, 100)


def test_a_row_is_not_brought_back_before_its_outcome_is_known():
    rows = sampler(exploration=0.01)
    rows.observe(1, [0.0, 1.0])
    rows.observe(2, [0.0, 1.0])
    assert Counter(rows.choose(seed) for seed in range(200))[1] == 1
    rows.observe(1, ())
    assert {rows.choose(seed) for seed in range(200)} == {None}, "what could not be scored comes in the order alone"


@given(
    outcomes=st.lists(st.tuples(st.integers(0, 5), st.lists(st.sampled_from([0.0, 1.0]), max_size=4)), max_size=60),
    exploration=st.floats(0.1, 1.0), memory=st.floats(0, 0.9),
)  # fmt: skip
def test_whatever_becomes_of_rows_every_epoch_passes_each_once(outcomes, exploration, memory):
    data = Curriculum(data=Arithmetic(num_examples=6), exploration=exploration, memory=memory)
    stream = PromptStream(data.train(), seed=1, num_epochs=2)
    fates = iter([rewards for _, rewards in outcomes])
    seen, num = Counter(), 0
    while (prompt := stream.next()) is not None:
        seen[prompt.row, prompt.epoch] += 1
        stream.outcomes.add(prompt, next(fates, ()))
        stream.outcomes.close_step()
        num += 1
        assert num < 10_000
    assert set(seen) == {(row, epoch) for row in range(6) for epoch in range(2)}
    if exploration == 1:
        assert set(seen.values()) == {1}


def carries(prompt: str) -> int:
    left, right = prompt.rstrip("=").split("+")
    return (int(left) % 10 + int(right) % 10 >= 10) + (int(left) + int(right) >= 100)


def useless_share(data: DataModule) -> float:
    """Of the groups of 50 steps after 50, those whose rewards are all equal; a policy that finds carrying hard."""
    stream, draw, useless = PromptStream(data.train(), seed=0), Random(0), 0
    for step in range(100):
        for prompt in [stream.next() for _ in range(16)]:
            success = (1.0, 0.5, 0.0)[carries(prompt.example.prompt)]
            rewards = [float(draw.random() < success) for _ in range(8)]
            stream.outcomes.add(prompt, rewards)
            useless += step >= 50 and len(set(rewards)) == 1
        stream.outcomes.close_step()
    return useless / (50 * 16)


def test_fewer_groups_teach_nothing_than_under_uniform_sampling():
    uniform, chosen = Arithmetic(), Curriculum(data=Arithmetic())
    assert useless_share(uniform) > 0.5
    assert useless_share(chosen) < 0.6 * useless_share(uniform)


@pytest.mark.slow
def test_a_deterministic_run_resumes_bit_for_bit(tmp_path: Path):
    """With filters, so that what is rejected counts too; little data, so that much comes again; steps that grow."""

    data = {
        "class_path": "curriculum",
        "init_args": {"data": {"class_path": "arithmetic", "init_args": {"num_examples": 24, "num_eval": 0}}},
    }
    fixed = {
        "runs_dir": str(tmp_path), "deterministic": True, "data": data, "filters": ["equal_rewards"],
        "loggers": [{"class_path": "samples", "init_args": {"groups_per_step": 4}}],
        "rollout": {
            "groups_per_step": 4, "samples_per_group": 4, "groups_warmup": {"start": 2, "steps": 7},
            "length_warmup": {"start": 2, "steps": 7},
        },
    }  # fmt: skip

    def rows(*changed: str, resume: str | None = None) -> list[str]:
        trainer = recipes.load("quickstart_inline", fixed, overrides=changed)
        return (trainer.fit(resume=resume) / "samples.jsonl").read_text().splitlines()

    whole = rows("name=whole", "max_steps=8")
    rows("name=parts", "max_steps=5")
    assert rows("name=parts", "max_steps=8", resume="auto") == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"exploration": 0.0}, r"exploration must be in \(0, 1\]"), ({"memory": 1.0}, r"memory must be in \[0, 1\)")],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Curriculum(data=Arithmetic(), **arguments)


def test_one_curriculum_is_enough():
    with pytest.raises(ValueError, match="source 'arithmetic' has a Learnability already"):
        Curriculum(data=Curriculum(data=Arithmetic())).train()


def test_an_algorithm_without_rewards_has_no_use_for_it():
    trainer = recipes.load("quickstart_sft")
    trainer.data = Curriculum(data=trainer.data)
    assert [rule for rule in trainer.validate() if "curriculum learns from rewards, and SFT has none" in rule]


class Sampled(DataModule):
    """Has a sampler that is not fresh."""

    def __init__(self) -> None:
        self.kept = Learnability(exploration=0.5, threshold=0.5, memory=0.5)

    def setup(self, codec):
        pass

    def train(self):
        return {"a": Source(examples=Arithmetic(num_examples=3).train()["arithmetic"].examples, sampler=self.kept)}


def test_the_suite_refuses_a_sampler_that_outlives_train(tmp_path):
    with pytest.raises(AssertionError, match="must be fresh"):
        check_data(Sampled, TextCodec(tiny_spec(tmp_path)))
