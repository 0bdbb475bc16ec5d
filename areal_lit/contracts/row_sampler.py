"""RowSampler: which rows of a source come again, by what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class RowSampler(ABC):
    """Brings rows of a source back between those that come in the order of the data.

    The order is the core's, and so are epochs: each passes every row once, whatever a sampler brings back between. Runs
    on the event loop: be quick. Random only by the seeds it is given, so that a resumed run goes on as it would have.
    """

    @abstractmethod
    def choose(self, seed: int) -> int | None:
        """The row that is drawn next, or None for the next one in the order.

        Args:
            seed: of this draw alone.
        """

    @abstractmethod
    def observe(self, row: int, rewards: Sequence[float]) -> None:
        """What became of a drawn row, once for each time it was drawn.

        Told before the first draw after the step that trained on its group or rejected it, in the order of drawing.

        Args:
            rewards: of the group's scored samples; empty if there are none, or if the row was not rolled out.
        """

    @abstractmethod
    def state_dict(self) -> Mapping[str, Any]:
        """What a resumed run needs; plain JSON-able values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
