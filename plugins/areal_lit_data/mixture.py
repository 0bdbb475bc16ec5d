"""Several data modules as one, each with its own reward, workflow and sampling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import DataModule, Reward, Source, Workflow
from areal_lit.text import TextCodec
from areal_lit.types import Sampling

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


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
        self.parts = sources

    def rules(self, trainer: Trainer) -> Iterable[str]:
        for name, part in self.parts.items():
            for component in (part.data, part.reward, part.workflow):
                if component is not None:
                    yield from (f"source {name!r}: {rule}" for rule in component.rules(trainer))

    def setup(self, codec: TextCodec) -> None:
        for name, part in self.parts.items():
            try:
                part.data.setup(codec)
            except ValueError as error:
                raise ValueError(f"source {name!r}: {error}") from error

    def train(self) -> Mapping[str, Source]:
        return self._merged({name: part.data.train() for name, part in self.parts.items()})

    def evaluation(self) -> Mapping[str, Source]:
        return self._merged({name: part.data.evaluation() for name, part in self.parts.items()})

    def sources(self) -> Mapping[str, DataModule]:
        return {name: part.data for name, part in self.parts.items()}

    def state_dict(self) -> Mapping[str, Any]:
        states = {name: dict(part.data.state_dict()) for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if unknown := state.keys() - self.parts.keys():
            raise ValueError(
                f"the checkpoint holds sources {sorted(unknown)} that this mixture lacks; it has {sorted(self.parts)}"
            )
        for name, part in self.parts.items():
            part.data.load_state_dict(state.get(name, {}))

    def _merged(self, inner: Mapping[str, Mapping[str, Source]]) -> dict[str, Source]:
        merged = {}
        for name, sources in inner.items():
            part = self.parts[name]
            total = sum(source.weight for source in sources.values())
            for inner_name, source in sources.items():
                merged[name if len(sources) == 1 else f"{name}/{inner_name}"] = replace(
                    source,
                    weight=part.weight * source.weight / total,
                    reward=source.reward if part.reward is None else part.reward,
                    workflow=source.workflow if part.workflow is None else part.workflow,
                    sampling=source.sampling if part.sampling is None else part.sampling,
                )
        return merged
