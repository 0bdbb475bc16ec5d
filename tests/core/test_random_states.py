"""Global random states: after restoring, the same numbers come again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from areal_lit import random_states


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    before = random_states.capture()
    yield
    random_states.restore(before)


def draw() -> list[float]:
    """A number of each generator; the normal ones keep a second one for the next call."""
    return [random.gauss(0, 1), float(np.random.randn()), float(torch.rand(())), random.random()]


def test_the_same_numbers_come_again() -> None:
    random.gauss(0, 1)
    np.random.randn()
    state = json.loads(json.dumps(random_states.capture()))
    drawn = [draw() for _ in range(3)]
    assert [draw() for _ in range(3)] != drawn
    random_states.restore(state)
    assert [draw() for _ in range(3)] == drawn
