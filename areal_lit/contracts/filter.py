"""Filter: which complete groups are worth training on."""

from __future__ import annotations

from abc import abstractmethod

from areal_lit.contracts.component import Component
from areal_lit.types import Group


class Filter(Component):
    """Judges complete, scored groups on the raw rewards. Rejected ones are counted, and replaced by others."""

    @abstractmethod
    def accept(self, group: Group) -> bool:
        """Whether the group goes to training. Runs on the event loop: be quick. Another answer ends the run."""
