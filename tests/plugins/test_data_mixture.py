"""Mixture: names, weights, and what each part brings with it."""

from __future__ import annotations

import pytest

from areal_lit.contracts import DataModule, Reward, Source
from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example, Sampling
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_data.mixture import Mixture, MixtureSource


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path))


class Constant(Reward):
    def __init__(self, value):
        self.value = value

    def __len__(self):
        return 0

    def score(self, trajectory):
        return self.value


class TwoSources(DataModule):
    def setup(self, codec):
        pass

    def train(self):
        return {
            "easy": Source(examples=[Example(prompt="1=")], weight=3.0, reward=Constant(1)),
            "hard": Source(examples=[Example(prompt="2=")], sampling=Sampling(max_new_tokens=5)),
        }

    def evaluation(self):
        return {"test": Source(examples=[Example(prompt="3=")])}


class Malformed(TwoSources):
    def setup(self, codec):
        raise ValueError("row 3 is torn")


def test_keeps_the_contract(codec):
    sources = {"sums": MixtureSource(data=Arithmetic()), "two": MixtureSource(data=TwoSources(), weight=2)}
    check_data(lambda: Mixture(sources=sources), codec)


def test_names_and_weights(codec):
    data = Mixture(
        sources={"sums": MixtureSource(data=Arithmetic()), "two": MixtureSource(data=TwoSources(), weight=2.0)}
    )
    data.setup(codec)
    assert {name: source.weight for name, source in data.train().items()} == {
        "sums": 1.0,
        "two/easy": 1.5,
        "two/hard": 0.5,
    }
    assert list(data.evaluation()) == ["sums", "two"]


def test_parts_without_a_reward_are_named_before_setup():
    inner = Mixture(sources={"a": MixtureSource(data=Arithmetic(), reward=Constant(1))})
    open_inner = Mixture(sources={"a": MixtureSource(data=Arithmetic())})
    data = Mixture(
        sources={
            "own": MixtureSource(data=Arithmetic(), reward=Constant(1)),
            "bare": MixtureSource(data=Arithmetic()),
            "inner": MixtureSource(data=inner),
            "open": MixtureSource(data=open_inner),
        }
    )
    assert data.unrewarded() == ["bare", "open"]
    assert inner.unrewarded() == []


def test_a_part_overrides_what_its_data_brings(codec):
    reward = Constant(2)
    kept = Mixture(sources={"two": MixtureSource(data=TwoSources())}).train()
    overridden = Mixture(sources={"two": MixtureSource(data=TwoSources(), reward=reward)})
    assert kept["two/easy"].reward.value == 1
    assert kept["two/hard"].reward is None
    assert kept["two/hard"].sampling.max_new_tokens == 5
    assert [source.reward for source in overridden.train().values()] == [reward, reward]
    assert overridden.evaluation()["two"].reward is reward


def test_errors_name_the_part(codec):
    data = Mixture(sources={"torn": MixtureSource(data=Malformed(), reward=Constant(1))})
    with pytest.raises(ValueError, match="source 'torn': row 3 is torn"):
        data.setup(codec)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixture(sources={}), "at least one"),
        (lambda: Mixture(sources={"a/b": MixtureSource(data=Arithmetic())}), "without '/'"),
        (lambda: MixtureSource(data=Arithmetic(), weight=0), "weight must be > 0"),
        (lambda: MixtureSource(data=Arithmetic(), weight=float("nan")), "weight must be > 0"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
