"""check_data passes sound modules and fails each planted bug."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from areal_lit.contracts import DataModule, Source
from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path))


@dataclass
class Rows(DataModule):
    """Sound; the mutants below change one thing."""

    length: int = 30
    loaded: dict[str, Source] = field(default_factory=dict)

    def setup(self, codec: TextCodec) -> None:
        self.loaded = {"rows": Source(examples=[self.example(index) for index in range(self.length)])}

    def example(self, index: int) -> Example:
        return Example(prompt=f"{index}+1=", fields={"answer": str(index + 1)})

    def train(self) -> Mapping[str, Source]:
        return self.loaded


class GlobalRandom(Rows):
    def example(self, index):
        return Example(prompt=f"{random.random()}=")


class Drifting(Rows):
    """An iterator dressed as a sequence: the index is ignored."""

    class Stream(Sequence):
        def __init__(self):
            self.counter = count()

        def __len__(self):
            return 30

        def __getitem__(self, index):
            if index >= 30:
                raise IndexError(index)
            return Example(prompt=f"{next(self.counter)}=")

    def setup(self, codec):
        self.loaded = {"rows": Source(examples=self.Stream())}


class Endless(Rows):
    class Cycle(list):
        def __getitem__(self, index):
            return super().__getitem__(index % len(self))

    def setup(self, codec):
        super().setup(codec)
        self.loaded = {"rows": Source(examples=self.Cycle(self.loaded["rows"].examples))}


class Unpicklable(Rows):
    def example(self, index):
        return Example(prompt="1=", fields={"check": lambda text: text == "1"})


class ListPrompt(Rows):
    def example(self, index):
        return Example(prompt=[{"role": "user", "content": "hi"}])


class NoContent(Rows):
    def example(self, index):
        return Example(prompt=({"role": "user"},))


class EmptyPrompt(Rows):
    def example(self, index):
        return Example(prompt="")


class NoExample(Rows):
    def example(self, index):
        return {"prompt": "1="}


class ZeroWeight(Rows):
    def setup(self, codec):
        super().setup(codec)
        self.loaded = {"rows": Source(examples=self.loaded["rows"].examples, weight=0.0)}


class EagerLock(Rows):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Nothing(Rows):
    def train(self):
        return {}


class NotJson(Rows):
    def state_dict(self):
        return {"seen": {1, 2}}


class Boasting(Rows):
    def unrewarded(self):
        return ()


def test_a_sound_module_passes(codec):
    check_data(Rows, codec)


def test_one_example_is_enough(codec):
    check_data(lambda: Rows(length=1), codec)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (GlobalRandom, "differs between two instances"),
        (Drifting, "changed between two accesses"),
        (Endless, "must raise IndexError"),
        (Unpicklable, "cannot reach the reward pool"),
        (ListPrompt, "non-empty tuple of messages"),
        (NoContent, "role and content"),
        (EmptyPrompt, "empty text"),
        (NoExample, "must be an Example, got dict"),
        (ZeroWeight, "must be > 0"),
        (EagerLock, "does not pickle before setup"),
        (Nothing, "nothing to run on"),
        (NotJson, "plain JSON"),
        (Boasting, r"brings no reward, but unrewarded\(\) promises"),
        (lambda: Rows(length=0), "is empty"),
    ],
)
def test_planted_bugs_fail(codec, mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_data(mutant, codec)
