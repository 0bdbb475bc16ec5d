"""Several data modules as one, each with its own reward, workflow and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from areal_lit.contracts import DataModule, Preview, Reward, Source, Workflow
from areal_lit.evaluation import merged_names
from areal_lit.text import TextCodec
from areal_lit.types import Sampling


@dataclass(frozen=True, kw_only=True)
class MixtureSource:
    """One part of a mixture.

    Args:
        data: where the examples come from.
        weight: share of prompts, relative to the other parts; its own sources divide it by their weights.
        reward: scores this part; None leaves it to the part's data, then to the trainer.
        workflow: runs this part's episodes; None likewise.
        sampling: draws this part's tokens; None likewise.
    """

    data: DataModule
    weight: float = 1.0
    reward: Reward | None = None
    workflow: Workflow | None = None
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be > 0 and finite, got {self.weight}; leave the part out instead")


class Mixture(DataModule):
    """Named parts drawn by weight. A part with several sources of its own gives them as ``part/source``.

    Args:
        sources: name -> data and what is special about it.
    """

    def __init__(self, *, sources: Mapping[str, MixtureSource]) -> None:
        if not sources:
            raise ValueError("sources must name at least one data module")
        for name in sources:
            if not name or "/" in name:
                raise ValueError(f"the name of a source must be non-empty and without '/', got {name!r}")
        self.sources = sources

    def setup(self, codec: TextCodec) -> None:
        for name, part in self.sources.items():
            try:
                part.data.setup(codec)
            except ValueError as error:
                raise ValueError(f"source {name!r}: {error}") from error

    def train(self) -> Mapping[str, Source]:
        return self._merged({name: part.data.train() for name, part in self.sources.items()})

    def evaluation(self) -> Mapping[str, Source]:
        return self._merged({name: part.data.evaluation() for name, part in self.sources.items()})

    def evaluation_names(self) -> Sequence[str] | None:
        names: list[str] = []
        for name, part in self.sources.items():
            inner = part.data.evaluation_names()
            if inner is None:
                return None
            names += merged_names(name, inner)
        return names

    def preview(self) -> Mapping[str, Preview]:
        previews = {}
        for name, part in self.sources.items():
            for inner_name, preview in part.data.preview().items():
                previews[f"{name}/{inner_name}"] = replace(
                    preview,
                    reward=preview.reward if part.reward is None else part.reward,
                    sampling=preview.sampling if part.sampling is None else part.sampling,
                )
        return previews

    def unrewarded(self) -> Sequence[str]:
        return [name for name, part in self.sources.items() if part.reward is None and part.data.unrewarded()]

    def _merged(self, inner: Mapping[str, Mapping[str, Source]]) -> dict[str, Source]:
        merged = {}
        for name, sources in inner.items():
            part = self.sources[name]
            total = sum(source.weight for source in sources.values())
            for merged_name, source in zip(merged_names(name, sources), sources.values(), strict=True):
                merged[merged_name] = replace(
                    source,
                    weight=part.weight * source.weight / total,
                    reward=source.reward if part.reward is None else part.reward,
                    workflow=source.workflow if part.workflow is None else part.workflow,
                    sampling=source.sampling if part.sampling is None else part.sampling,
                )
        return merged
