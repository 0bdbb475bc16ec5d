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

    def rules(self, trainer):
        return [f"constant {self.value}"]


class TwoSources(DataModule):
    def __init__(self):
        self.seen = 0

    def setup(self, codec):
        pass

    def train(self):
        return {
            "easy": Source(examples=[Example(prompt="1=")], weight=3.0, reward=Constant(1)),
            "hard": Source(examples=[Example(prompt="2=")], sampling=Sampling(max_new_tokens=5)),
        }

    def evaluation(self):
        return {"test": Source(examples=[Example(prompt="3=")])}

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


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
    assert list(data.sources()) == ["sums", "two"]


def test_a_part_overrides_what_its_data_brings(codec):
    reward = Constant(2)
    kept = Mixture(sources={"two": MixtureSource(data=TwoSources())}).train()
    overridden = Mixture(sources={"two": MixtureSource(data=TwoSources(), reward=reward)})
    assert kept["two/easy"].reward.value == 1
    assert kept["two/hard"].reward is None
    assert kept["two/hard"].sampling.max_new_tokens == 5
    assert [source.reward for source in overridden.train().values()] == [reward, reward]
    assert overridden.evaluation()["two"].reward is reward


def test_errors_and_rules_name_the_part(codec):
    data = Mixture(sources={"torn": MixtureSource(data=Malformed(), reward=Constant(1))})
    assert list(data.rules(None)) == ["source 'torn': constant 1"]
    with pytest.raises(ValueError, match="source 'torn': row 3 is torn"):
        data.setup(codec)


def test_state_of_the_parts_is_kept(codec):
    inner = TwoSources()
    inner.seen = 7
    data = Mixture(sources={"two": MixtureSource(data=inner), "sums": MixtureSource(data=Arithmetic())})
    again = TwoSources()
    resumed = Mixture(sources={"two": MixtureSource(data=again), "sums": MixtureSource(data=Arithmetic())})
    resumed.load_state_dict(data.state_dict())
    assert again.seen == 7
    with pytest.raises(ValueError, match=r"\['other'\] that this mixture lacks"):
        resumed.load_state_dict({"other": {"seen": 1}})


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
