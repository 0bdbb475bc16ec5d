"""Function: a plain Python function as the reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Reward, Score
from areal_lit.plugins import import_named
from areal_lit.types import Example, Trajectory

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


OF_EPISODE = ("completion", "prompt", "trajectory")
"""What a function may ask for beside the example's fields."""


class Function(Reward):
    """What a function returns: a number, ``Scored`` or ``Unscored``.

    It is called with the keyword arguments it names: ``completion`` (the text), ``prompt`` (text or messages),
    ``trajectory``, and any of the example's fields, as in ``def reward(completion, answer)``. ``**fields`` takes the
    rest of the fields. A parameter that the example does not have and that has no default is an error.

    Args:
        function: dotted path (``package.module.name`` or ``package.module:name``), or from Python the function itself.
    """

    def __init__(self, *, function: str | Callable[..., Any]) -> None:
        self.function = function

    def rules(self, trainer: Trainer) -> Iterable[str]:
        try:
            parameters(resolve(self.function))
        except ValueError as error:
            return (str(error),)
        return ()

    def setup(self) -> None:
        self._call = resolve(self.function)
        self._parameters = parameters(self._call)

    def check(self, example: Example) -> None:
        """Raise ValueError for a parameter that nothing of an episode fills."""
        try:
            wanted = parameters(resolve(self.function))
        except ValueError:
            return  # told by ``rules``
        _check_filled(wanted, {*example.fields, *OF_EPISODE})

    def score(self, trajectory: Trajectory) -> Score:
        of_episode = (trajectory.text, trajectory.prompt.example.prompt, trajectory)
        given = {**trajectory.prompt.fields, **dict(zip(OF_EPISODE, of_episode, strict=True))}
        _check_filled(self._parameters, given)
        arguments: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= {name: value for name, value in trajectory.prompt.fields.items() if name not in arguments}
            elif name in given:
                arguments[name] = given[name]
        score: Score = self._call(**arguments)
        return score


def _check_filled(parameters: Mapping[str, inspect.Parameter], given: Collection[str]) -> None:
    for name, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if is_needed and name not in given:
            raise ValueError(
                f"the reward function wants {name!r}; there is only {sorted(given)}; rename it or add a default"
            )


def resolve(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function. Raises ValueError that says what the path lacks, with the traceback where its module fails."""
    if not isinstance(function, str):
        return function
    path = function.replace(":", ".")
    if "." not in path.strip("."):
        raise ValueError(f"function must be a dotted path such as package.module.name, got {function!r}")
    found = import_named(path, "function")
    if not callable(found):
        raise ValueError(f"function {function!r} is {found!r}, which cannot be called")
    call: Callable[..., Any] = found
    return call


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Its parameters by name. Raises ValueError for one that cannot be given by name, or a coroutine function."""
    if inspect.iscoroutinefunction(function):
        raise ValueError(
            f"{function.__qualname__} is async; subclass areal_lit.contracts.Reward with `async def score`"
        )
    found = dict(inspect.signature(function).parameters)
    for parameter in found.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ValueError(f"reward functions are called by keyword; {parameter} cannot be given so")
    return found
