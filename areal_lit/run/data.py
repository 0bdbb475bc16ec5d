"""RunData: the data of a run once it is loaded, and the position in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal_lit.contracts import Source
from areal_lit.evaluation import evaluation_sources
from areal_lit.prompts import PromptStream
from areal_lit.text import TextCodec
from areal_lit.validation import data_modules

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What training and evaluation draw from.

    Args:
        sources: of training prompts, by name.
        evaluation_sources: held-out sets, by name.
        stream: the training prompts in order, with the position in them.
        codec: of the policy's tokenizer.
    """

    sources: Mapping[str, Source]
    evaluation_sources: Mapping[str, Source]
    stream: PromptStream
    codec: TextCodec

    @classmethod
    def load(cls, trainer: Trainer) -> RunData:
        """Have every data module read what it has; the tokenizer is loaded too, while ranks load their models."""
        codec = TextCodec(trainer.policy.model, template_kwargs=trainer.template_kwargs)
        codec.load()
        for module in data_modules(trainer).values():
            module.setup(codec)
        sources = dict(trainer.data.train())
        return cls(
            sources=sources,
            evaluation_sources=evaluation_sources(trainer.data, trainer.evaluation.data),
            stream=PromptStream(sources, seed=trainer.seed, num_epochs=trainer.rollout.epochs),
            codec=codec,
        )

    @property
    def source_names(self) -> list[str]:
        """What a batch's ``source`` column counts: training sources, then further evaluation sets."""
        return list(dict.fromkeys([*self.sources, *self.evaluation_sources]))
