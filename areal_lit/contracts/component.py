"""What every plugin class has in common: a contract version, state, and rules it can check beforehand."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class Component(ABC):  # noqa: B024 - the kinds below it have the abstract members
    """A class that recipes name. Its constructor only stores its arguments; ``setup`` does the work.

    So instances cost nothing, pickle, and travel to other processes. Copies there hold no state that
    varies: what varies (a weight under control, the step) travels in the batch.
    """

    contract_version: ClassVar[int] = 1
    """Version of the contract this class implements; a newer one than the core's is refused."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that this component imports late, where it runs in a process of its own. A launcher that forks has them
    imported beforehand. They must start no thread and initialise no CUDA when they are imported."""

    def rules(self, trainer: Trainer) -> Iterable[str]:
        """Sentences naming each broken cross-field rule (value, rule, way out); none if all is well.

        Called by ``validate`` before any process starts. Must not start, load or connect to anything.
        """
        return ()

    def state_dict(self) -> Mapping[str, Any]:
        """What a resumed run needs from this component; plain JSON-able values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        if state:
            raise ValueError(
                f"{type(self).__name__} saved state {sorted(state)} but has no load_state_dict to take it back"
            )
