"""Rules of numbers, whatever they are for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.validation.walk import walk

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def number_rules(trainer: Trainer) -> Iterator[str]:
    """What is no number passes many a check of its bounds, since it is neither below nor above anything."""
    for path, value in walk("", trainer):
        if isinstance(value, float) and math.isnan(value):
            yield f"{path} is {value}, which is not a number; give one"
