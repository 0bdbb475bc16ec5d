"""RunState: what a checkpoint of a run holds, gathered from the run's parts and given back to them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from areal_lit import random_states
from areal_lit.checkpointing import Captured
from areal_lit.contracts import Callback, Component, RunLogger
from areal_lit.plugins.distributions import origin
from areal_lit.roles import RoleGroup
from areal_lit.secrets import redact
from areal_lit.validation import components

if TYPE_CHECKING:
    from areal_lit.run.offline import OfflineBatches
    from areal_lit.run.online import Online
    from areal_lit.trainer import Trainer

logger = logging.getLogger(__name__)


class RunState:
    """Models and optimizers on their ranks, the position in the data, components, random states, callbacks' files.

    Args:
        components: every component of the run by its path in the recipe, default callbacks and loggers included.
        config: the recipe as resolved; kept for readers, without its secrets.
    """

    def __init__(
        self, trainer: Trainer, *, roles: Mapping[str, RoleGroup], batches: OfflineBatches | Online,
        components: Mapping[str, Component], hook: pluggy.HookRelay, config: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._trainer = trainer
        self._roles = roles
        self._batches = batches
        self._components = components
        self._hook = hook
        self._config = config

    def prepare_capture(self) -> None:
        """Have ranks that save while they train get the memory for it ready; nobody waits for that."""
        settings = self._trainer.checkpoint
        if settings.in_background and settings.is_periodic:
            for name in self._changing_roles:
                self._roles[name].prepare_save()

    def capture(self, directory: Path, *, evaluation: Mapping[str, float], in_background: bool) -> Captured:
        """Take the state as it is now; ranks go on writing files into ``directory`` after this returns.

        Args:
            evaluation: metrics of an evaluation of this step, if there was one.
            in_background: training is to go on meanwhile.
        """
        trainer, settings = self._trainer, self._trainer.checkpoint
        writing = []
        for name in self._changing_roles:
            path = directory / "roles" / name
            path.mkdir(parents=True)
            export = None
            if name == "policy" and settings.export_hf:
                export = (directory / "hf").resolve()
                export.mkdir()
            writing += self._roles[name].save(
                path.resolve(), export=export, in_background=in_background, timeout_s=settings.timeout_s
            )
        state = {
            "batches": dict(self._batches.state_dict()),
            "components": self.of_components(),
            "random": random_states.capture(),
            "evaluation": dict(evaluation),
            "config": redact(self._config),
        }
        self._hook.checkpoint_save(trainer=trainer, step=trainer.step, directory=directory)
        return Captured(state=state, writing=writing)

    def of_components(self) -> dict[str, Any]:
        """Class and state of each component that has any. Raises TypeError, naming it, for what is no JSON."""
        return {
            path: {"class_path": _class_path(component), "state": state}
            for path, component in self._components.items()
            if (state := _state_of(path, component))
        }

    def load_models(self, directory: Path) -> None:
        """Give every role that changes what it wrote."""
        for name in self._changing_roles:
            path = (directory / "roles" / name).resolve()
            if name not in self._trainer.algorithm.heads and not path.exists():
                logger.warning("%s has no %s, which had no refresh then; it begins with its own model", directory, name)
                continue
            self._roles[name].load(path)

    @property
    def _changing_roles(self) -> list[str]:
        """Roles that are trained or follow the policy."""
        heads = self._trainer.algorithm.heads
        return [name for name, group in self._roles.items() if name in heads or group.role.refresh is not None]

    def restore(self, directory: Path, state: Mapping[str, Any]) -> None:
        """Take back everything but the models. State of a component that is another class now is left out and told.

        Raises ValueError, naming checkpoint and part, for state that its owner cannot read.
        """
        trainer = self._trainer
        with _reading(directory, "batches"):
            self._batches.load_state_dict(state["batches"])
        for path, saved in state["components"].items():
            with _reading(directory, f"components, {path}"):
                class_path, inner = saved["class_path"], saved["state"]
            component = self._components.get(path)
            if component is None or _class_path(component) != class_path:
                logger.warning(
                    "%s has state of %s at %s, which is not in the recipe any more; it is left out",
                    directory, class_path, path,
                )  # fmt: skip
            else:
                with _reading(directory, f"components, {path} ({class_path})"):
                    component.load_state_dict(inner)
        with _reading(directory, "random"):
            random_states.restore(state["random"])
        self._hook.checkpoint_load(trainer=trainer, step=trainer.step, directory=directory)


@contextmanager
def _reading(directory: Path, part: str) -> Iterator[None]:
    """Name checkpoint and part where an owner of state does not find in it what it once wrote."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{directory / 'state.json'} cannot be gone on with: {part} holds other state than this run's "
            f"({type(error).__name__}: {error}). The file was changed, or another version of a plugin wrote it; resume "
            "from an earlier checkpoint, or with that version"
        ) from error


def run_components(
    trainer: Trainer, *, callbacks: Sequence[Callback], loggers: Sequence[RunLogger]
) -> dict[str, Component]:
    """Every component of a run by its path in the recipe, which the defaults of callbacks and loggers are given too."""
    listed = {"callbacks": callbacks, "loggers": loggers}
    of_run = {f"{name}.{index}": part for name, parts in listed.items() for index, part in enumerate(parts)}
    return {**components(trainer), **of_run}


def _state_of(path: str, component: Component) -> dict[str, Any]:
    state = component.state_dict()
    try:
        if not isinstance(state, Mapping):
            raise TypeError(f"{type(state).__name__} is no mapping")
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{path}: state_dict() of {origin(component)} returned what a checkpoint cannot hold: {error}; return a "
            "dict of numbers, strings, lists and dicts"
        ) from error
    return dict(state)


def _class_path(component: Component) -> str:
    return f"{type(component).__module__}.{type(component).__qualname__}"
