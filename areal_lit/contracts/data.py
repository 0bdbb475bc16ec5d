"""DataModule: named sources of examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal_lit.contracts.component import Component
from areal_lit.contracts.row_sampler import RowSampler
from areal_lit.types import Example, Sampling

if TYPE_CHECKING:
    from areal_lit.contracts.reward import Reward
    from areal_lit.contracts.workflow import Workflow
    from areal_lit.text import TextCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Examples by index, and what is special about them.

    Args:
        examples: random access by index, so that shuffling and resuming are exact. Deterministic: the same index
            always gives the same example.
        weight: share in a mixture, relative to its sister sources.
        reward, workflow, sampling: used for this source instead of the trainer's.
        sampler: brings examples back between those that come in order; None for none. Holds what a run learns, so each
            call of ``train`` gives a fresh one.
    """

    examples: Sequence[Example]
    weight: float = 1.0
    reward: Reward | None = None
    workflow: Workflow | None = None
    sampling: Sampling | None = None
    sampler: RowSampler | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first few examples of a source, for validation.

    Args:
        reward, sampling: those of the source, where it brings its own.
        max_prompt_tokens: rows with longer prompts will be left out; None keeps all.
    """

    examples: Sequence[Example]
    reward: Reward | None = None
    sampling: Sampling | None = None
    max_prompt_tokens: int | None = None


PREVIEWED = 32
"""As many examples show a mistake that all rows share."""


class DataModule(Component):
    """Training and evaluation examples by named source. Order, epochs and position are the core's."""

    @abstractmethod
    def setup(self, codec: TextCodec) -> None:
        """Load; raise ValueError naming file and row for what is malformed."""

    @abstractmethod
    def train(self) -> Mapping[str, Source]:
        """Training sources; empty for evaluation only."""

    def evaluation(self) -> Mapping[str, Source]:
        """Evaluation sets by name."""
        return {}

    def evaluation_names(self) -> Sequence[str] | None:
        """The keys of ``evaluation`` before ``setup``, for validation; None, the default, where they are not known."""
        return None

    def preview(self) -> Mapping[str, Preview]:
        """Examples by source, evaluation sets too, before ``setup``; for validation, so quick and without network.

        By default none. Raises ValueError for malformed data as ``setup`` does, as far as it reads.
        """
        return {}

    def unrewarded(self) -> Sequence[str]:
        """Names of what leaves scoring to the trainer's reward; for validation, so known before ``setup``.

        A module whose sources all bring a reward of their own returns none.
        """
        return (type(self).__name__,)
