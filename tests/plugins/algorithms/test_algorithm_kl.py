"""KL terms against what they estimate, in closed form on a small categorical."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, put

from areal_lit.token_batch import TokenOutputs, weighted_sum
from areal_lit.types import Metric
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.kl import estimate, kl_loss, kl_reward
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.ratios import log_ratio, ratio

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([0.0, 0.5, -0.4, 0.2], dtype=torch.float64), 0)
BEHAVIOUR = torch.log_softmax(torch.tensor([0.1, -0.3, 0.2, 0.4], dtype=torch.float64), 0)
EVERY_TOKEN = torch.ones(4, dtype=torch.bool)


def expected_term(estimator: Any, behaviour: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Expectation over ``behaviour`` of the term, and of its gradient in the logits."""
    logits = LOGITS.clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    term = (behaviour.exp() * kl_loss(logprob, REFERENCE, behaviour, EVERY_TOKEN, estimator)).sum()
    return term.item(), torch.autograd.grad(term, logits)[0]


def divergence(*, is_reverse: bool) -> tuple[float, torch.Tensor]:
    logits = LOGITS.clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    first, second = (logprob, REFERENCE) if is_reverse else (REFERENCE, logprob)
    value = (first.exp() * (first - second)).sum()
    return value.item(), torch.autograd.grad(value, logits)[0]


POLICIES = pytest.mark.parametrize(
    "behaviour", [torch.log_softmax(LOGITS, 0), BEHAVIOUR], ids=["on-policy", "off-policy"]
)


@POLICIES
@pytest.mark.parametrize("estimator", ["k3", "k3+"])
def test_k3_has_the_reverse_divergence_as_its_value(estimator: Any, behaviour: torch.Tensor) -> None:
    value, _ = expected_term(estimator, behaviour)
    assert value == pytest.approx(divergence(is_reverse=True)[0])


@POLICIES
def test_k2_has_half_the_mean_square_as_its_value_which_is_the_divergence_of_near_policies(
    behaviour: torch.Tensor,
) -> None:
    x = torch.log_softmax(LOGITS, 0) - REFERENCE
    value, _ = expected_term("k2", behaviour)
    assert value == pytest.approx((torch.log_softmax(LOGITS, 0).exp() * x * x / 2).sum().item())
    near = torch.log_softmax(REFERENCE + 1e-3 * LOGITS, 0)
    means = [(near.exp() * estimate(near - REFERENCE, estimator)).sum().item() for estimator in ("k1", "k2")]
    assert means[1] == pytest.approx(means[0], rel=1e-3)


def mean_square() -> torch.Tensor:
    """The gradient of k2's expectation under the policy itself."""
    logits = LOGITS.clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    return torch.autograd.grad((logprob.exp() * (logprob - REFERENCE).square() / 2).sum(), logits)[0]


REVERSE, FORWARD = (divergence(is_reverse=is_reverse)[1] for is_reverse in (True, False))


@POLICIES
@pytest.mark.parametrize(
    ("place", "estimator", "expected"),
    [
        ("loss", "k2", REVERSE),
        ("loss", "k3+", REVERSE),
        ("loss", "k3", FORWARD),
        ("reward", "k1", REVERSE),
        ("reward", "k2", mean_square() - REVERSE),
        ("reward", "k3", REVERSE - FORWARD),
    ],
)
def test_what_a_whole_algorithm_descends_on(
    place: Any, estimator: Any, expected: torch.Tensor, behaviour: torch.Tensor
) -> None:
    """Without rewards, summed over all outcomes by the behaviour's probabilities, where the step starts.

    In the reward, only k1 gives the gradient of what it estimates: E[k grad log pi] leaves out how k itself changes.
    """
    algorithm = GRPO(
        kl_weight=1.0, kl_in=place, kl_estimator=estimator, rejection=None,
        reward_norm=Normaliser(mean_level="none", std_level="none"),
    )  # fmt: skip
    batch = make_batch(algorithm, range(4), [0.0] * 4, [[1]] * 4)
    columns = {"logprob": behaviour, "proximal": torch.log_softmax(LOGITS, 0), "reference": REFERENCE}
    for name, column in columns.items():
        batch = put(batch, name, column[:, None].tolist())
    batch = put(algorithm.weigh(algorithm.prepare(batch)), "token_weight", behaviour.exp()[:, None].tolist())
    logits = LOGITS.clone().requires_grad_()
    logprob_T = torch.stack([torch.zeros_like(logits), torch.log_softmax(logits, 0)], 1).flatten()
    total = weighted_sum(algorithm.objectives()["policy"](TokenOutputs(logprob_T=logprob_T), batch), batch)
    assert torch.allclose(torch.autograd.grad(total, logits)[0], expected, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("x", [0.0, -1e-4, 3e-4, 0.02, -0.5, 4.0, -15.0, 30.0])
def test_k3_keeps_its_digits_where_policies_hardly_differ(x: float, dtype: torch.dtype) -> None:
    """There exp(-x) is 1 to nearly all digits of float32, and what is left of it may be below 0."""
    log_ratio_T = torch.tensor([x], dtype=dtype, requires_grad=True)
    exact = Decimal(log_ratio_T.item())
    exact = (-exact).exp() - 1 + exact
    value_T = estimate(log_ratio_T, "k3")
    (slope_T,) = torch.autograd.grad(value_T.sum(), log_ratio_T)
    assert value_T.item() == pytest.approx(float(exact), rel=1e-5, abs=1e-7 * abs(x))
    assert slope_T.item() == pytest.approx(-math.expm1(-x), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3+"])
@pytest.mark.parametrize("x", [-40.0, -20.5, -1.0, 1.0, 20.5, 40.0])
def test_no_estimator_pulls_away_from_the_reference_however_far_it_is(estimator: Any, x: float) -> None:
    log_ratio_T = torch.tensor([x], requires_grad=True)
    value_T = estimate(log_ratio_T, estimator)
    (slope_T,) = torch.autograd.grad(value_T.sum(), log_ratio_T)
    assert slope_T.item() * x >= 0
    assert math.isfinite(value_T.item())


def test_the_ratio_of_a_loss_term_is_bounded() -> None:
    behaviour = torch.tensor([-9.0, -0.1], dtype=torch.float64)
    logprob = torch.tensor([-1.0, -0.3], dtype=torch.float64)
    terms = kl_loss(logprob, logprob - 1.0, behaviour, torch.ones(2, dtype=torch.bool), "k2")
    assert terms.tolist() == pytest.approx([10 / 2, math.exp(-0.2) / 2])


def test_masked_values_reach_no_exponential() -> None:
    mask = torch.tensor([True, False])
    logprob = torch.tensor([-1.0, float("nan")], requires_grad=True)
    result = ratio(log_ratio(logprob, torch.tensor([-1.0, -1e30]), mask))
    assert result.tolist() == [1.0, 1.0]
    assert torch.autograd.grad(result.sum(), logprob)[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("estimator", "place", "message"),
    [("k1", "loss", "k1 has a gradient of zero mean on-policy"), ("k3+", "reward", "take k3")],
)
def test_estimators_that_do_nothing_there_are_refused(estimator: Any, place: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPO(kl_estimator=estimator, kl_in=place, kl_weight=0.1)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_estimators_in_the_reward_have_the_divergence_as_expectation(estimator: Any) -> None:
    logprob = torch.log_softmax(LOGITS, 0)
    value = (logprob.exp() * kl_reward(logprob, REFERENCE, EVERY_TOKEN, estimator)).sum().item()
    assert value == pytest.approx(divergence(is_reverse=True)[0])


@POLICIES
def test_k1_in_the_loss_would_have_no_gradient(behaviour: torch.Tensor) -> None:
    assert expected_term("k1", behaviour)[1].tolist() == pytest.approx([0.0] * 4, abs=1e-12)


def test_a_divergence_in_the_reward_is_what_is_still_to_come() -> None:
    algorithm = GRPO(kl_weight=0.5, kl_in="reward", kl_estimator="k1", reward_norm=Normaliser(std_level="none"))
    batch = make_batch(algorithm, [1, 1], [3.0, 1.0], [[1, 0, 1], [1]])
    batch = put(put(batch, "proximal", [[-1.0, 9.0, -2.0], [-1.0]]), "reference", [[-1.5, -9.0, -1.0], [-1.0]])
    advantage = algorithm.prepare(batch)["advantage"].tolist()
    assert advantage == pytest.approx([0, 1 - 0.5 * (0.5 - 1.0), 0, 1 + 0.5, 0, -1])
    metrics = {m.name: m.value for m in algorithm.step_metrics(algorithm.prepare(batch))}
    assert metrics["train/reward_kl_mean"] == pytest.approx(-0.5 * (0.5 - 1.0) / 3)


def test_without_a_recomputed_policy_the_divergence_is_the_behaviours() -> None:
    settings: dict[str, Any] = {"kl_weight": 1.0, "kl_in": "reward", "kl_estimator": "k1"}
    algorithm = GRPO(decoupled=False, old="behaviour", **settings)
    batch = make_batch(algorithm, [1, 1], [1.0, 1.0], [[1], [1]])
    batch = put(put(batch, "logprob", [[-1.0], [-2.0]]), "reference", [[-1.5], [-1.0]])
    assert algorithm.prepare(batch)["advantage"].tolist() == pytest.approx([0, -0.5, 0, 1.0])


def test_the_weight_moves_toward_its_target_and_outlives_a_resume() -> None:
    algorithm = GRPO(kl_weight=0.1, target_kl=0.05, kl_gain=0.5)
    batch = put(make_batch(algorithm, [1, 1], [1.0, 0.0]), "proximal", [[0.0] * 2] * 2)

    def after(kl: float) -> float:
        taken = algorithm.prepare(batch).scalars["kl_weight"]
        reported = algorithm.end_step({"train/kl_reference": Metric(name="train/kl_reference", sum=kl)})
        assert {m.name: m.value for m in reported} == {"train/kl_weight": taken}, "that of the step, before it moves"
        return algorithm.prepare(batch).scalars["kl_weight"]

    assert after(0.055) == pytest.approx(0.1 * 1.05)
    assert after(50.0) == pytest.approx(0.1 * 1.05 * 1.1)
    assert after(0.0) == pytest.approx(0.1 * 1.05 * 1.1 * 0.9)
    resumed = GRPO(kl_weight=0.1, target_kl=0.05)
    resumed.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    assert resumed.prepare(batch).scalars == algorithm.prepare(batch).scalars
    kept = GRPO(kl_weight=0.2)
    kept.load_state_dict(algorithm.state_dict())
    assert kept.prepare(batch).scalars["kl_weight"] == 0.2


def test_a_target_without_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target_kl moves kl_weight, which must be > 0 then, got 0\.0"):
        GRPO(target_kl=0.1)
    with pytest.raises(ValueError, match="target_kl must be > 0"):
        GRPO(target_kl=0.0, kl_weight=0.1)
