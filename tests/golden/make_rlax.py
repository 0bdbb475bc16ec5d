"""Makes rlax.json: rlax's GAE, clipped surrogate, Huber loss and V-trace, in float64, sequence by sequence."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from golden_file import Recorder
from ragged_cases import Case, Floats, cases

jax.config.update("jax_enable_x64", True)

GAE = jax.jit(rlax.truncated_generalized_advantage_estimation)
VTRACE = jax.jit(partial(rlax.vtrace, lambda_=0.0, clip_rho_threshold=5.0, stop_target_gradients=False))


def per_row(case: Case, lam: Any, gamma: float) -> Floats:
    """Advantages of the trained tokens, [B, S]; ``lam`` is a number, or a function of a sequence's length."""
    result = np.zeros(case.mask.shape)
    for b in np.flatnonzero(case.is_trained):
        mask = case.mask[b]
        after = case.final_value[b] if case.truncated[b] else 0.0
        values, rewards = np.append(case.value[b][mask], after), case.token_reward[b][mask]
        each = float(lam(len(rewards)) if callable(lam) else lam)
        result[b, mask] = GAE(jnp.array(rewards), jnp.full(len(rewards), gamma), each, jnp.array(values))
    return result


def corrected(case: Case) -> Floats:
    """V-trace's errors of one step, with ratios of proximal to behaviour truncated at 5; [B, S]."""
    result = np.zeros(case.mask.shape)
    for b in np.flatnonzero(case.is_trained):
        mask = case.mask[b]
        after = case.final_value[b] if case.truncated[b] else 0.0
        values = np.append(case.value[b][mask], after)
        ratio = np.exp(case.proximal[b] - case.behaviour[b])[mask]
        result[b, mask] = VTRACE(
            jnp.array(values[:-1]), jnp.array(values[1:]), jnp.array(case.token_reward[b][mask]),
            jnp.full(len(ratio), 0.9), jnp.array(ratio),
        )  # fmt: skip
    return result


def surrogate(log_prob: jax.Array, old: jax.Array, advantage: jax.Array) -> jax.Array:
    return rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - old), advantage, 0.2)


def huber(value: jax.Array, target: jax.Array) -> jax.Array:
    return rlax.huber_loss(value - target, 10.0).mean()


def padded(case: Case, x: Any) -> Floats:
    result = np.zeros(case.mask.shape)
    result[case.mask] = x
    return result


def main() -> None:
    recorder = Recorder()
    for case in cases():
        advantage = per_row(case, 0.95, 1.0)
        recorder.add(case, "gae", advantage=advantage)
        recorder.add(case, "alpha", advantage=per_row(case, lambda n: max(0.0, 1 - 1 / (0.3 * n)), 0.97))
        recorder.add(case, "q", advantage=per_row(case, lambda n: 0.5 ** (1 / max(n - 1, 1)), 1.0))
        recorder.add(case, "vtrace", error=corrected(case))
        for old in ("behaviour", "proximal"):
            given = [jnp.array(x[case.mask]) for x in (case.current, getattr(case, old), advantage)]
            loss, slope = jax.value_and_grad(surrogate)(*given)
            recorder.add(case, f"ppo_{old}", loss=float(loss), gradient=padded(case, slope))
        target = (advantage + case.value)[case.mask]
        loss, slope = jax.value_and_grad(huber)(jnp.array(case.new_value[case.mask]), jnp.array(target))
        recorder.add(case, "critic_huber", loss=float(loss), gradient=padded(case, slope))
    recorder.write("rlax", package="rlax")


if __name__ == "__main__":
    main()
