"""Conformance suite for strategies, against a plain Hugging Face run in the same process.

    def test_conformance(tmp_path):
        check_strategy(MyStrategy, tmp_path)

Or one test per check: ``@pytest.mark.parametrize("check", STRATEGY_CHECKS)`` and ``check(Case(MyStrategy, tmp_path))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from areal_lit.contracts.strategy import Output, Strategy
from areal_lit.models import load_causal_lm
from areal_lit.testing.strategy_case import (
    LOGPROB,
    Case,
    PlainAdam,
    PlainSGD,
    infinite,
    objective,
    of_divergence,
    of_topk,
    plain_distributions,
    plain_outputs,
    random_batch,
    same,
    same_weights,
    select,
    square_gap,
    tensors,
    value_of,
)  # fmt: skip
from areal_lit.testing.strategy_state import (
    a_loaded_strategy_goes_on_exactly,
    a_snapshot_is_of_its_moment,
    an_export_is_the_same_model,
    weights_fit_their_manifest,
    weights_of_another_role_are_taken_or_averaged,
)
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum

BOTH: frozenset[Output] = frozenset({"logprob", "entropy"})
VALUE: frozenset[Output] = frozenset({"value"})
TOPK: frozenset[Output] = frozenset({"topk"})
DIVERGENCE: frozenset[Output] = frozenset({"divergence"})


def outputs_speak_of_their_own_token(case: Case) -> None:
    """Log-probs and entropies equal those of each sequence alone, at its temperature; first tokens have 0."""
    batch = random_batch()
    (ours,) = case.ready().forward([batch], BOTH)
    with torch.no_grad():
        theirs = plain_outputs(case.model(), batch)
    mask_T, first_T = batch["loss_mask"], batch["position"] == 0
    for name in ("logprob_T", "entropy_T"):
        our, their = getattr(ours, name), getattr(theirs, name)
        assert our is not None, f"{name} was asked for and not returned"
        assert our.device.type == "cpu", f"{name} must be on the CPU"
        assert not our.requires_grad, f"{name} must carry no gradient"
        same(our[mask_T], their[mask_T], name)
        assert not bool(our[first_T].any()), f"{name} must be 0 at a segment's first token"
    assert ours.value_T is None, "value_T was not asked for"


def values_are_of_the_state_before_the_token(case: Case) -> None:
    """``value_T[n]`` of a sequence equals ``final_value_S`` of its first n tokens."""
    strategy = case.ready(PlainSGD(lr=0.5), head="value")
    whole = random_batch((9,))
    prefix = {n: replace(whole, columns={**whole.columns, **_prefix(whole, n)}) for n in range(1, 9)}
    (full,) = strategy.forward([whole], VALUE)
    assert full.value_T is not None
    for n, batch in prefix.items():
        (part,) = strategy.forward([batch], VALUE)
        same(part.final_value_S, full.value_T[n : n + 1], f"value before token {n}")


def _prefix(batch: TokenBatch, n: int) -> dict[str, Tensor]:
    cut = {name: column[:n] for name, column in batch.columns.items() if batch.dims[name] == "T"}
    return {**cut, "length": torch.tensor([n])}


def gradients_match_plain_torch(case: Case) -> None:
    """One step of plain gradient descent, with log-probs and entropies in the loss, with and without clipping."""
    batch, model = random_batch(), case.model()
    torch.autograd.backward(weighted_sum(objective(plain_outputs(model, batch), batch), batch))
    named = dict(model.named_parameters())
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in named.values()])
    for max_grad_norm in (0.0, 0.5 * float(norm), 2 * float(norm)):
        scale = min(1.0, max_grad_norm / float(norm)) if max_grad_norm else 1.0
        strategy = case.ready(PlainSGD(lr=1.0, max_grad_norm=max_grad_norm))
        metrics = strategy.optimizer_step([batch], objective, BOTH)
        same(torch.tensor(value_of(metrics, "grad_norm")), norm, "grad_norm, which is that before clipping")
        theirs = {name: (p - scale * p.grad).detach() for name, p in named.items()}
        same_weights(tensors(strategy), theirs, f"weights minus gradient with max_grad_norm={max_grad_norm:g}")


def microbatches_do_not_matter(case: Case) -> None:
    """Gradient, loss and metrics are the same for one micro-batch and for several of unequal size."""
    batch = random_batch()
    results = []
    for split in ([[0, 1, 2, 3, 4, 5]], [[4], [3, 0, 5], [1, 2]], [[5], [4], [3], [2], [1], [0]]):
        strategy = case.ready(PlainSGD(lr=1.0, max_grad_norm=0))
        metrics = strategy.optimizer_step([select(batch, segments) for segments in split], objective, BOTH)
        loss = sum(m.sum for m in metrics if m.name == "loss")
        tokens = sum(m.sum for m in metrics if m.name == "tokens")
        results.append((tensors(strategy), loss, tokens))
    for weights, loss, tokens in results[1:]:
        same_weights(weights, results[0][0], "weights after other micro-batches")
        same(torch.tensor(loss), torch.tensor(results[0][1]), "loss over other micro-batches")
        assert tokens == results[0][2], "the objective's metrics depend on micro-batches"


def steps_match_plain_torch(case: Case) -> None:
    """Adam, clipping, and a schedule that moves once per training step of two mini-batches."""
    optimizer = PlainAdam(lr=1e-2, schedule="linear", warmup_steps=1, max_grad_norm=0.1)
    strategy, model = case.ready(optimizer, num_steps=3), case.model()
    torch_optimizer = optimizer.build(model.parameters())
    for step in range(3):
        for minibatch in range(2):
            batch = random_batch(seed=10 * step + minibatch)
            metrics = strategy.optimizer_step([batch], objective, LOGPROB)
            torch_optimizer.zero_grad()
            outputs = replace(plain_outputs(model, batch), entropy_T=None)
            torch.autograd.backward(weighted_sum(objective(outputs, batch), batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.max_grad_norm)
            lr = optimizer.lr_at(step, 3)
            for group in torch_optimizer.param_groups:
                group["lr"] = lr
            torch_optimizer.step()
            assert value_of(metrics, "lr") == lr, "lr must be lr_at(training step), moved by end_step alone"
        strategy.end_step()
    theirs = {name: parameter.detach() for name, parameter in model.named_parameters()}
    same_weights(tensors(strategy), theirs, "weights after Adam", tolerance=1e-3)


def likeliest_tokens_are_told_and_judged(case: Case) -> None:
    """``topk`` of a teacher are the likeliest tokens; of a policy it has their log-probs, with their gradient."""
    strategy, batch = case.ready(PlainSGD(lr=1.0, max_grad_norm=0)), random_batch()
    if "topk" not in strategy.offers:
        return
    (told,) = strategy.forward([batch.with_scalars(topk=3.0)], TOPK)
    model, mask_T = case.model(), batch["loss_mask"]
    logp_TV = plain_distributions(model, batch)
    expected_TK, token_TK = logp_TV.topk(3)
    same(told.topk_logprob_TK, expected_TK.detach().where(mask_T[:, None], 0.0), "topk_logprob_TK of a teacher")
    assert told.topk_token_TK is not None
    assert torch.equal(told.topk_token_TK[mask_T], token_TK[mask_T]), "topk_token_TK must be the likeliest tokens"

    asked = batch.with_columns(topk_token=(batch["token"][:, None] + torch.tensor([[1, 5]])) % 64)
    (judged,) = strategy.forward([asked], TOPK)
    logp_TK = logp_TV.gather(1, asked["topk_token"])
    same(judged.topk_logprob_TK, logp_TK.detach().where(mask_T[:, None], 0.0), "topk_logprob_TK of given tokens")
    strategy.optimizer_step([asked], of_topk, TOPK)
    torch.autograd.backward(weighted_sum(of_topk(TokenOutputs(topk_logprob_TK=logp_TK), batch), batch))
    theirs = {name: (p - p.grad).detach() for name, p in model.named_parameters()}
    same_weights(tensors(strategy), theirs, "weights minus the gradient of topk_logprob_TK")


def whole_vocabularies_are_compared(case: Case) -> None:
    """``divergence`` is the sum over all entries, with the policy's gradient alone, after ``compare_with``."""
    policy, teacher, batch = case.ready(PlainSGD(lr=1.0, max_grad_norm=0)), case.ready(init_seed=1), random_batch()
    if "divergence" not in policy.offers:
        return
    policy.compare_with(teacher, square_gap)
    (ours,) = policy.forward([batch], DIVERGENCE)
    model, mask_T = case.model(), batch["loss_mask"]
    with torch.no_grad():
        other_TV = plain_distributions(load_causal_lm(replace(case.spec(), init_seed=1)), batch)
    expected_T = square_gap(plain_distributions(model, batch), other_TV).sum(-1).where(mask_T, 0.0)
    same(ours.divergence_T, expected_T.detach(), "divergence_T")
    before = tensors(teacher)
    policy.optimizer_step([batch], of_divergence, DIVERGENCE)
    torch.autograd.backward(weighted_sum(of_divergence(TokenOutputs(divergence_T=expected_T), batch), batch))
    theirs = {name: (p - p.grad).detach() for name, p in model.named_parameters()}
    same_weights(tensors(policy), theirs, "weights minus the gradient of divergence_T")
    same_weights(tensors(teacher), before, "weights of the teacher", exact=True)


def non_finite_gradients_skip_the_step(case: Case) -> None:
    """Nothing moves, the skip is counted, a good step resets the count, and the limit ends the run."""
    strategy = case.ready(PlainAdam(lr=1e-2, max_skipped_steps=2))
    batch = random_batch()
    for _ in range(2):
        before = tensors(strategy)
        for _ in range(2):
            metrics = strategy.optimizer_step([batch], infinite, LOGPROB)
            assert value_of(metrics, "skipped_steps") == 1, "skipped_steps must count the skip"
        same_weights(tensors(strategy), before, "weights after a skipped step", exact=True)
        metrics = strategy.optimizer_step([batch], objective, LOGPROB)
        assert value_of(metrics, "skipped_steps") == 0
        moved = [name for name, tensor in tensors(strategy).items() if not torch.equal(tensor, before[name])]
        assert moved, "a good step must move the weights"
    try:
        for _ in range(3):
            strategy.optimizer_step([batch], infinite, LOGPROB)
    except FloatingPointError:
        return
    raise AssertionError("3 skipped steps in a row passed max_skipped_steps=2 without FloatingPointError")


def evaluation_leaves_everything_alone(case: Case) -> None:
    """``evaluate`` reports the loss a step would, and moves nothing."""
    strategy = case.ready(PlainSGD(lr=0.5))
    batch, before = random_batch(), tensors(strategy)
    loss = sum(m.sum for m in strategy.evaluate([batch], objective, LOGPROB) if m.name == "loss")
    same_weights(tensors(strategy), before, "weights after evaluate", exact=True)
    metrics = strategy.optimizer_step([batch], objective, LOGPROB)
    same(torch.tensor(loss), torch.tensor(value_of(metrics, "loss")), "loss of evaluate and optimizer_step")


STRATEGY_CHECKS: tuple[Callable[[Case], None], ...] = (
    outputs_speak_of_their_own_token,
    values_are_of_the_state_before_the_token,
    gradients_match_plain_torch,
    microbatches_do_not_matter,
    steps_match_plain_torch,
    weights_fit_their_manifest,
    a_loaded_strategy_goes_on_exactly,
    a_snapshot_is_of_its_moment,
    an_export_is_the_same_model,
    likeliest_tokens_are_told_and_judged,
    whole_vocabularies_are_compared,
    non_finite_gradients_skip_the_step,
    evaluation_leaves_everything_alone,
    weights_of_another_role_are_taken_or_averaged,
)


def check_strategy(make: Callable[[], Strategy], directory: Path) -> None:
    """Run every check on strategies from ``make``; AssertionError says which promise is broken.

    Args:
        make: the class, or a function that constructs one.
        directory: an empty directory (pytest's ``tmp_path``).
    """
    for check, place in zip(STRATEGY_CHECKS, _places(directory), strict=False):
        check(Case(make, place))


def _places(directory: Path) -> Iterator[Path]:
    for index in range(len(STRATEGY_CHECKS)):
        place = directory / str(index)
        place.mkdir()
        yield place
