"""Makes torchrl.json: torchrl's advantages, PPO (policy, decoupled policy, critic) and V-trace, in float64.

The trained tokens of a case are one batch in time: ``done`` ends a sequence, ``terminated`` one that was not truncated.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from golden_file import Recorder
from ragged_cases import Case, Floats, cases
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import functional

warnings.simplefilter("ignore")

GAE = {"gae": (1.0, 0.95), "monte_carlo": (0.97, 1.0), "one_step": (0.9, 0.0)}
"""Discount and lambda of each."""


class Said(ClipPPOLoss):
    """PPO whose networks say given numbers."""

    def _get_cur_log_prob(self, tensordict: TensorDict, params: Any = None) -> tuple[Tensor, None, bool]:
        return tensordict["current" if params is None else "proximal"], None, False


def ppo(**settings: Any) -> Said:
    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(1, 2), in_keys=["unused"], out_keys=["logits"]), in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
    )  # fmt: skip
    critic = TensorDictModule(nn.Identity(), in_keys=["new_value"], out_keys=["state_value"])
    return Said(actor, critic, entropy_bonus=False, critic_coeff=1.0, **settings)


PPO = {
    "behaviour": ppo(loss_critic_type="l2", clip_value=0.2, normalize_advantage=True),
    "decoupled": ppo(loss_critic_type="l2", normalize_advantage=True, delay_actor=True, clip_epsilon=(0.2, 0.28)),
}


class Steps:
    """The trained tokens of a case, [N, 1] each."""

    def __init__(self, case: Case) -> None:
        self.case = case
        row = np.nonzero(case.mask)[0]
        self.done = np.append(row[1:] != row[:-1], True)
        self.terminated = self.done & ~case.truncated[row]
        value = case.value[case.mask]
        self.next_value = np.where(self.done, case.final_value[row], np.append(value[1:], 0.0))

    def column(self, x: Floats) -> Tensor:
        return torch.tensor(x[self.case.mask])[:, None]

    def ends(self) -> dict[str, Tensor]:
        return {"done": torch.tensor(self.done)[:, None], "terminated": torch.tensor(self.terminated)[:, None]}

    def padded(self, x: Tensor) -> Floats:
        result = np.zeros(self.case.mask.shape)
        result[self.case.mask] = x.detach().numpy().ravel()
        return result


def main() -> None:
    torch.set_default_dtype(torch.float64)
    recorder = Recorder()
    for case in cases():
        steps = Steps(case)
        value, reward = steps.column(case.value), steps.column(case.token_reward)
        next_value = torch.tensor(steps.next_value)[:, None]
        made = {}
        for name, (gamma, lam) in GAE.items():
            made[name], target = functional.generalized_advantage_estimate(
                gamma, lam, value, next_value, reward, **steps.ends()
            )
            recorder.add(case, name, advantage=steps.padded(made[name]), returns=steps.padded(target))
        _, target = functional.vtrace_advantage_estimate(
            0.9, steps.column(case.proximal), steps.column(case.behaviour), value, next_value, reward,
            **steps.ends(), rho_thresh=5.0, c_thresh=0.0,
        )  # fmt: skip
        recorder.add(case, "vtrace", error=steps.padded(target - value))
        policies(recorder, case, steps, made["gae"], made["gae"] + value)
    recorder.write("torchrl", package="torchrl")


def policies(recorder: Recorder, case: Case, steps: Steps, advantage: Tensor, returns: Tensor) -> None:
    current, new_value = (steps.column(x).requires_grad_() for x in (case.current, case.new_value))
    given = {
        "current": current[:, 0], "proximal": steps.column(case.proximal)[:, 0], "new_value": new_value,
        "action_log_prob": steps.column(case.behaviour)[:, 0], "advantage": advantage, "value_target": returns,
        "state_value": steps.column(case.value),
    }  # fmt: skip
    for name, loss in PPO.items():
        made = loss(TensorDict(given, batch_size=[len(advantage)]))
        (slope,) = torch.autograd.grad(made["loss_objective"], current)
        recorder.add(case, f"ppo_{name}", loss=made["loss_objective"].item(), gradient=steps.padded(slope))
        (slope,) = torch.autograd.grad(made["loss_critic"], new_value)
        recorder.add(case, f"critic_{name}", loss=made["loss_critic"].item(), gradient=steps.padded(slope))


if __name__ == "__main__":
    main()
