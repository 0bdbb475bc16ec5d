"""check_optimizer: the conformance suite of optimizers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch

from areal_lit.contracts import Optimizer
from areal_lit.testing.component import check_component, require


def check_optimizer(make: Callable[[], Optimizer], *, num_steps: int = 60) -> None:
    """Raise AssertionError unless the strategy can drive, save and resume what the optimizer builds.

    ::

        def test_optimizer():
            check_optimizer(lambda: MyOptimizer(lr=0.05))

    Args:
        make: constructs the optimizer with a learning rate that brings a small quadratic down within ``num_steps``.
        num_steps: of the descent.
    """
    optimizer = check_component(make, "optimizer")
    _check_schedule(optimizer)
    _check_build(optimizer)
    _check_descent(optimizer, num_steps)
    _check_rate_is_obeyed(optimizer)
    _check_resume(optimizer)


def _check_schedule(optimizer: Optimizer) -> None:
    require(optimizer.lr > 0, f"lr must be > 0 to be checked, got {optimizer.lr}")
    for num_steps in (None, 1, 10, 1000):
        for step in range(12 if num_steps is None else num_steps + 2):
            rate = optimizer.lr_at(step, num_steps)
            require(
                math.isfinite(rate) and 0 <= rate <= optimizer.lr * (1 + 1e-9),
                f"lr_at({step}, {num_steps}) must be within 0..lr={optimizer.lr}, got {rate}",
            )
        require(optimizer.lr_at(0, num_steps) > 0, f"lr_at(0, {num_steps}) is 0: the first step would not move")


def _parameters() -> list[torch.nn.Parameter]:
    """A matrix, a vector and a scalar, as models have them, away from 0."""
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator) + 2) for shape in ((4, 8), (8,), ())]


def _loss(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return sum(((parameter - 1) ** 2).sum() for parameter in parameters)  # type: ignore[return-value]


def _step(parameters: list[torch.nn.Parameter], built: torch.optim.Optimizer) -> None:
    built.zero_grad(set_to_none=True)
    _loss(parameters).backward()  # type: ignore[no-untyped-call]
    built.step()


def _check_build(optimizer: Optimizer) -> None:
    parameters = _parameters()
    built = optimizer.build(iter(parameters))
    require(
        isinstance(built, torch.optim.Optimizer), f"build() must return a torch optimizer, got {type(built).__name__}"
    )
    held = [id(parameter) for group in built.param_groups for parameter in group["params"]]
    require(
        sorted(held) == sorted(map(id, parameters)),
        f"build() must hold each of the {len(parameters)} parameters once, it holds {len(held)} ({len(set(held))} "
        "distinct); the parameters may come as an iterator, which can be read once",
    )
    rates = {float(group["lr"]) for group in built.param_groups}
    require(rates == {optimizer.lr}, f"every parameter group must start at lr={optimizer.lr}, got {sorted(rates)}")


def _check_descent(optimizer: Optimizer, num_steps: int) -> None:
    parameters = _parameters()
    built = optimizer.build(parameters)
    before = float(_loss(parameters).detach())
    for _ in range(num_steps):
        _step(parameters, built)
    after = float(_loss(parameters).detach())
    require(
        after < before / 2,
        f"{num_steps} steps must at least halve a quadratic loss, it went from {before:.4g} to {after:.4g}",
    )
    for state in built.state.values():
        for name, value in state.items():
            if torch.is_tensor(value) and value.is_floating_point() and value.dim():
                require(
                    value.dtype == torch.float32,
                    f"state {name!r} of float32 parameters is {value.dtype}; states below float32 plateau",
                )


def _check_rate_is_obeyed(optimizer: Optimizer) -> None:
    parameters = _parameters()
    built = optimizer.build(parameters)
    for group in built.param_groups:
        group["lr"] = 0.0
    before = copy.deepcopy([parameter.data for parameter in parameters])
    _step(parameters, built)
    moved = [not torch.equal(old, new.data) for old, new in zip(before, parameters, strict=True)]
    require(
        not any(moved), "a step at param_groups[...]['lr'] = 0 must change nothing: the strategy schedules through it"
    )


def _check_resume(optimizer: Optimizer) -> None:
    parameters = _parameters()
    built = optimizer.build(parameters)
    for _ in range(3):
        _step(parameters, built)
    resumed = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    rebuilt = optimizer.build(resumed)
    rebuilt.load_state_dict(copy.deepcopy(built.state_dict()))
    for _ in range(3):
        _step(parameters, built)
        _step(resumed, rebuilt)
    same = all(torch.equal(one, other) for one, other in zip(parameters, resumed, strict=True))
    require(
        same, "after state_dict() and load_state_dict() the steps must be bit for bit those of the uninterrupted run"
    )
