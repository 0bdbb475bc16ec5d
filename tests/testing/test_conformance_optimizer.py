"""check_optimizer passes a sound optimizer and fails each planted bug."""

from __future__ import annotations

import pytest
import torch

from areal_lit.contracts import Optimizer
from areal_lit.testing import check_optimizer


class Adam(Optimizer):
    def build(self, parameters):
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=0.1)


class ReadsTwice(Optimizer):
    def build(self, parameters):
        sum(parameter.numel() for parameter in parameters)
        matrices = [parameter for parameter in parameters if parameter.dim() > 1]
        return torch.optim.AdamW([*matrices, torch.nn.Parameter(torch.zeros(1))], lr=self.lr)


class OnlyMatrices(Optimizer):
    def build(self, parameters):
        return torch.optim.AdamW([parameter for parameter in parameters if parameter.dim() > 1], lr=self.lr)


class HardwiredRate(Optimizer):
    def build(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-3)


class IgnoresRate(Optimizer):
    class Built(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= 0.05 * parameter.grad

    def build(self, parameters):
        return self.Built(parameters, lr=self.lr)


class Ascends(Optimizer):
    def build(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr, maximize=True)


class HalfStates(Optimizer):
    class Built(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            for state in self.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].bfloat16().to(torch.bfloat16)
                state["low"] = state.pop("momentum_buffer")

    def build(self, parameters):
        return self.Built(parameters, lr=self.lr, momentum=0.5)


class ForgetsState(Optimizer):
    class Built(torch.optim.SGD):
        """Momentum kept beside ``state``, so that no checkpoint holds it."""

        @torch.no_grad()
        def step(self, closure=None):
            self.momenta = getattr(self, "momenta", {})
            for group in self.param_groups:
                for parameter in group["params"]:
                    momentum = 0.5 * self.momenta.get(parameter, 0.0) + parameter.grad
                    self.momenta[parameter] = momentum
                    parameter -= group["lr"] * momentum

    def build(self, parameters):
        return self.Built(parameters, lr=self.lr)


class StartsAtZero(Adam):
    def lr_at(self, step, num_steps):
        return 0.0 if step == 0 else self.lr


class Overshoots(Adam):
    def lr_at(self, step, num_steps):
        return self.lr * (1 + step)


class ReturnsList(Optimizer):
    def build(self, parameters):
        return list(parameters)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_sound_optimizer_passes(schedule):
    check_optimizer(lambda: Adam(lr=0.05, schedule=schedule, warmup_steps=3))


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (ReadsTwice, "can be read once"),
        (OnlyMatrices, "each of the 3 parameters once"),
        (HardwiredRate, "must start at lr=0.05"),
        (IgnoresRate, "must change nothing"),
        (Ascends, "at least halve"),
        (HalfStates, "states below float32 plateau"),
        (ForgetsState, "bit for bit"),
        (StartsAtZero, "the first step would not move"),
        (Overshoots, "must be within 0..lr"),
        (ReturnsList, "must return a torch optimizer"),
    ],
)
def test_planted_bugs_fail(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_optimizer(lambda: mutant(lr=0.05))
