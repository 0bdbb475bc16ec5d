"""Trainable: the parameters being trained, their float32 masters and the optimizer that moves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from areal_lit.contracts.optimizer import Optimizer


class Trainable:
    """Accumulates gradients in float32, clips, and steps; non-finite gradients skip the step.

    Float32 parameters are stepped in place. Others get a float32 master copy (also reachable as
    ``parameter.master``): each backward's gradient is added to ``master.grad`` and released, and after a step the
    parameter is the master rounded.

    Args:
        named: trained parameters by name; their names identify the masters in a checkpoint.
        optimizer: builds the torch optimizer, gives learning rates and limits.
        num_steps: training steps of the run, None if open-ended.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], optimizer: Optimizer, num_steps: int | None) -> None:
        self.config = optimizer
        self.num_steps = num_steps
        self.training_step = 0
        self.num_skipped_in_a_row = 0
        self.masters: dict[str, nn.Parameter] = {}
        self._rounded: dict[str, nn.Parameter] = {}
        for name, parameter in named.items():
            self.masters[name] = parameter
            if parameter.dtype != torch.float32:
                self._rounded[name] = parameter
                self.masters[name] = parameter.master = nn.Parameter(parameter.detach().float())
                parameter.register_post_accumulate_grad_hook(_add_to_master)
        self.torch_optimizer = optimizer.build(self.masters.values())

    @property
    def lr(self) -> float:
        """Learning rate of the current training step."""
        return self.config.lr_at(self.training_step, self.num_steps)

    def zero_grad(self) -> None:
        for master in self.masters.values():
            master.grad = None

    def step(self, before: Callable[[], None] | None = None) -> tuple[float, bool]:
        """The gradients' global L2 norm before clipping, and whether the step was taken.

        Args:
            before: called after clipping, only if the step will be taken.

        Raises FloatingPointError when more than ``max_skipped_steps`` in a row had non-finite gradients.
        """
        grads = [master.grad for master in self.masters.values() if master.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads) if grads else torch.zeros(())
        grad_norm = float(norm)
        if not torch.isfinite(norm):
            self._skip(grad_norm)
            return grad_norm, False
        self.num_skipped_in_a_row = 0
        if self.config.max_grad_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.masters.values(), self.config.max_grad_norm, norm)
        if before is not None:
            before()
        for group in self.torch_optimizer.param_groups:
            group["lr"] = self.lr
        self.torch_optimizer.step()
        self.round()
        return grad_norm, True

    def _skip(self, grad_norm: float) -> None:
        self.num_skipped_in_a_row += 1
        if self.num_skipped_in_a_row > self.config.max_skipped_steps:
            raise FloatingPointError(
                f"{self.num_skipped_in_a_row} optimizer steps in a row had non-finite gradients (norm {grad_norm}), "
                f"more than optimizer.max_skipped_steps={self.config.max_skipped_steps} allows; lower the learning "
                "rate, or look for infinities in rewards and log-probs"
            )

    @torch.no_grad()
    def round(self) -> None:
        """Write the masters into the parameters of lower precision."""
        for name, parameter in self._rounded.items():
            parameter.copy_(self.masters[name])

    @torch.no_grad()
    def follow(self) -> None:
        """Take the masters anew from the parameters, after these were overwritten."""
        for name, parameter in self._rounded.items():
            self.masters[name].copy_(parameter)

    def state_dict(self) -> dict[str, Any]:
        """Masters that are not parameters themselves, optimizer state, schedule position and skip count."""
        return {
            "masters": {name: self.masters[name].detach() for name in self._rounded},
            "optimizer": self.torch_optimizer.state_dict(),
            "training_step": self.training_step,
            "num_skipped_in_a_row": self.num_skipped_in_a_row,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back ``state_dict``. Masters absent from it (a run in float32 before) follow the parameters."""
        self.follow()
        for name, master in state["masters"].items():
            if name in self._rounded:
                self.masters[name].copy_(master)
        self.torch_optimizer.load_state_dict(state["optimizer"])
        self.training_step = int(state["training_step"])
        self.num_skipped_in_a_row = int(state["num_skipped_in_a_row"])


def _add_to_master(parameter: Tensor) -> None:
    master: nn.Parameter = parameter.master
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad += parameter.grad
    parameter.grad = None
