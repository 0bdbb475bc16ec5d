"""The rollout loop that these tests drive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pluggy
import pytest
from rollout_parts import LetterCodec, Make, Nothing, ScriptedEngine, by_sample, source

from areal_lit.contracts import InferenceBackend, Source
from areal_lit.hookspecs import HookSpecs
from areal_lit.prompts import PromptStream
from areal_lit.rollout import Rollout, RolloutDefaults, RolloutLoop
from areal_lit_workflows.single_turn import SingleTurn


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds and starts loops, and ends them."""
    loops: list[RolloutLoop] = []

    def build(
        settings: Rollout, *, engine: InferenceBackend | None = None, sources: dict[str, Source] | None = None,
        plugins: Sequence[object] = (), shuffle: bool = False, **keywords: Any,
    ) -> RolloutLoop:  # fmt: skip
        manager = pluggy.PluginManager("areal_lit")
        manager.add_hookspecs(HookSpecs)
        for plugin in (RolloutDefaults(settings), *plugins):
            manager.register(plugin)
        sources = sources or {"data": source(100)}
        values: dict[str, Any] = {
            "backend": engine or ScriptedEngine(), "codec": LetterCodec(), "workflow": SingleTurn(), "score": by_sample,
            "reward": Nothing(), "filters": (), "seed": 7, "deterministic": False,
        }  # fmt: skip
        values.update(keywords)
        stream = PromptStream(sources, seed=7, shuffle=shuffle, num_epochs=settings.epochs)
        loop = RolloutLoop(settings, stream=stream, sources=sources, hooks=manager.hook, **values)
        loops.append(loop)
        loop.start()
        return loop

    yield build
    for loop in loops:
        loop.stop()
