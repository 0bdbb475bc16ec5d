"""RunState: every part gives its state to a checkpoint and takes it back, and what fits nothing is told."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_lit import hookimpl, random_states, recipes
from areal_lit.contracts import Callback, Component, Source, WorkerGroup
from areal_lit.plugins import create_plugin_manager
from areal_lit.prompts import PromptStream
from areal_lit.roles import RoleGroup
from areal_lit.run.offline import OfflineBatches
from areal_lit.run.state import RunState
from areal_lit.text import TextCodec
from areal_lit.types import Example, ModelSpec


class Ranks(WorkerGroup):
    """Notes its calls."""

    name = "policy"
    num_ranks = 1

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def call(
        self, method: str, *args: Any, per_rank: Sequence[Any] | None = None, timeout_s: float
    ) -> list[Future[Any]]:
        self.calls.append((method, *args, timeout_s))
        future: Future[Any] = Future()
        future.set_result(None)
        return [future]

    def stop(self) -> None: ...


class Counter(Callback):
    """Has state, and a file in every checkpoint."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]

    @hookimpl
    def checkpoint_save(self, directory: Path, step: int) -> None:
        (directory / "count").write_text(f"{self.count} at {step}")


class Other(Counter):
    """Another class."""


def run_state(
    *callbacks: Callback, ranks: Ranks | None = None, settings: str = "{every_steps: 2, timeout_s: 9}"
) -> tuple[RunState, PromptStream]:
    trainer = recipes.load("quickstart_sft", overrides=[f"checkpoint={settings}"])
    trainer.step = 4
    stream = PromptStream({"data": Source(examples=[Example(prompt=str(index)) for index in range(9)])}, seed=0)
    batches = OfflineBatches(
        stream=stream, algorithm=trainer.algorithm, codec=TextCodec(ModelSpec(path="unused")), groups_per_step=2
    )
    components: dict[str, Component] = {f"callbacks.{index}": each for index, each in enumerate(callbacks)}
    group = RoleGroup("policy", trainer.policy, ranks or Ranks(), watch=lambda: None, timeout_s=5.0)
    state = RunState(
        trainer, roles={"policy": group}, batches=batches, components=components,
        hook=create_plugin_manager(callbacks).hook, config={"seed": 0, "api_key": "sk-secret"},
    )  # fmt: skip
    return state, stream


def captured(state: RunState, directory: Path) -> dict[str, Any]:
    taken = state.capture(directory, evaluation={"eval/test/reward": 0.5}, in_background=True)
    assert all(future.done() for future in taken.writing)
    return json.loads(json.dumps(taken.state))  # type: ignore[no-any-return]


def test_what_is_captured_is_taken_back(tmp_path: Path) -> None:
    ranks = Ranks()
    state, stream = run_state(Counter(3), ranks=ranks)
    stream.next()
    saved = captured(state, tmp_path)
    assert (tmp_path / "count").read_text() == "3 at 4"
    policy, export = tmp_path / "roles" / "policy", tmp_path / "hf"
    assert ranks.calls == [("save", "policy", policy, export, True, 9)]
    assert saved["evaluation"] == {"eval/test/reward": 0.5}
    assert saved["config"] == {"seed": 0, "api_key": "***"}
    before = random_states.capture()
    drawn = random.random()
    fresh, resumed = run_state(counter := Counter())
    fresh.restore(tmp_path, saved)
    assert counter.count == 3
    assert resumed.state_dict() == stream.state_dict()
    assert random.random() == drawn
    random_states.restore(before)


@pytest.mark.parametrize("callbacks", [(), (Other(),)], ids=["gone", "another class"])
def test_state_that_fits_nothing_is_told(
    tmp_path: Path, callbacks: Sequence[Callback], caplog: pytest.LogCaptureFixture
) -> None:
    saved = captured(run_state(Counter(3))[0], tmp_path)
    run_state(*callbacks)[0].restore(tmp_path, saved)
    (message,) = caplog.messages
    assert message.endswith("Counter at callbacks.0, which is not in the recipe any more; it is left out")
    assert all(each.count == 0 for each in callbacks if isinstance(each, Counter))


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("batches", {}, r"batches holds other state than this run's \(KeyError: "),
        ("components", {"callbacks.0": {}}, r"components, callbacks\.0 holds .*KeyError: 'class_path'"),
        ("components", {"callbacks.0": []}, r"components, callbacks\.0 holds .*TypeError"),
        ("random", {"python": [3, None, None]}, r"random holds other state"),
    ],
)
def test_state_that_its_owner_cannot_read_is_refused_by_name(tmp_path: Path, part: str, value: Any, told: str) -> None:
    saved = {**captured(run_state(Counter(3))[0], tmp_path), part: value}
    before = random_states.capture()
    with pytest.raises(ValueError, match=rf"{tmp_path}/state\.json cannot be gone on with: {told}.*earlier checkpoint"):
        run_state(Counter())[0].restore(tmp_path, saved)
    random_states.restore(before)


def test_a_component_that_does_not_know_its_state_is_named(tmp_path: Path) -> None:
    saved = captured(run_state(Counter(3))[0], tmp_path)
    saved["components"]["callbacks.0"]["state"] = {"number": 3}
    with pytest.raises(ValueError, match=r"components, callbacks\.0 \(.*Counter\) holds .*KeyError: 'count'"):
        run_state(Counter())[0].restore(tmp_path, saved)


class Careless(Callback):
    """Gives what it is told to as its state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "NoneType is no mapping"),
        ([1, 2], "list is no mapping"),
        ({"seen": {1, 2}}, "Object of type set is not JSON serializable"),
        ({"at": np.int64(3)}, "Object of type int64 is not JSON serializable"),
    ],
)
def test_state_that_no_checkpoint_can_hold_is_told_by_name(state: Any, says: str) -> None:
    told = rf"callbacks\.1: state_dict\(\) of .*Careless \(.*\) returned what a checkpoint cannot hold: {says}; r"
    with pytest.raises(TypeError, match=told):
        run_state(Counter(), Careless(state))[0].of_components()


@pytest.mark.parametrize(
    ("settings", "is_prepared"),
    [("{every_minutes: 5}", True), ("{every_steps: 0}", False), ("{every_steps: 1, in_background: false}", False)],
)
def test_memory_is_got_ready_only_for_saves_while_training(settings: str, is_prepared: bool) -> None:
    ranks = Ranks()
    run_state(ranks=ranks, settings=settings)[0].prepare_capture()
    assert ranks.calls == [("prepare_save", "policy", 5.0)] * is_prepared
