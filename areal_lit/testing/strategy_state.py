"""What the strategy suite asks of the weights and the state that a strategy hands out and takes back."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from areal_lit.contracts.strategy import Strategy
from areal_lit.testing.strategy_case import (
    LOGPROB,
    Case,
    PlainAdam,
    PlainSGD,
    objective,
    plain_outputs,
    random_batch,
    same,
    same_weights,
    tensors,
)
from areal_lit.types import TensorInfo


def weights_fit_their_manifest(case: Case) -> None:
    """Same names, shapes and dtypes in the same order, tied tensors once, and all a plain model needs."""
    strategy = case.ready()
    sent = [(name, tensor) for bucket in strategy.weights() for name, tensor in bucket]
    assert tuple(TensorInfo.of(*named) for named in sent) == strategy.manifest(), "manifest and weights differ"
    names = [name for name, _ in sent]
    assert len(set(names)) == len(names), "a name is sent twice"
    receiver = case.model()
    expected = {name for name, _ in receiver.named_parameters()}
    assert set(names) == expected, f"sent and expected names differ: {sorted(set(names) ^ expected)}; ties go once"
    with torch.no_grad():
        for parameter in receiver.parameters():
            parameter.zero_()
        for name, tensor in sent:
            receiver.get_parameter(name).copy_(tensor)
    same_weights({n: p.detach() for n, p in receiver.named_parameters()}, tensors(strategy), "received", exact=True)


def a_loaded_strategy_goes_on_exactly(case: Case) -> None:
    """After ``save`` and ``load`` into a fresh strategy the next steps are the same bit for bit."""
    optimizer = PlainAdam(lr=1e-2, schedule="cosine")
    saved = case.ready(optimizer, num_steps=5)
    for seed in range(2):
        saved.optimizer_step([random_batch(seed=seed)], objective, LOGPROB)
        saved.end_step()
    directory = case.directory / "saved"
    directory.mkdir()
    saved.save(directory)
    size_bytes, told = sum(file.stat().st_size for file in directory.iterdir()), saved.saved_bytes(has_export=False)
    assert told is None or 0.5 * told < size_bytes < 2 * told + 2**20, "saved_bytes must be about right"
    loaded = case.ready(optimizer, num_steps=5, init_seed=1)
    loaded.load(directory)
    for seed in (2, 3):
        for strategy in (saved, loaded):
            strategy.optimizer_step([random_batch(seed=seed)], objective, LOGPROB)
            strategy.end_step()
        same_weights(tensors(loaded), tensors(saved), "weights after loading", exact=True)


def a_snapshot_is_of_its_moment(case: Case) -> None:
    """What a snapshot writes after further steps is what ``save`` and ``export_hf`` would have written before them."""
    optimizer = PlainAdam(lr=1e-2, schedule="cosine")
    strategy = case.ready(optimizer, num_steps=5)
    strategy.prepare_snapshot()
    for seed in range(2):
        strategy.optimizer_step([random_batch(seed=seed)], objective, LOGPROB)
        strategy.end_step()
        snapshot, before = strategy.snapshot(), tensors(strategy)
        if snapshot is None:
            return
        strategy.optimizer_step([random_batch(seed=9)], objective, LOGPROB)
        directory = case.directory / f"snapshot-{seed}"
        directory.mkdir()
        snapshot.save(directory)
        loaded = case.ready(optimizer, num_steps=5, init_seed=1)
        loaded.load(directory)
        same_weights(tensors(loaded), before, "weights of a snapshot", exact=True)
        loaded.optimizer_step([random_batch(seed=9)], objective, LOGPROB)
        same_weights(tensors(loaded), tensors(strategy), "weights after a step from a snapshot", exact=True)
        directory = case.directory / f"export-of-snapshot-{seed}"
        directory.mkdir()
        snapshot.export_hf(directory)
        same_weights(_exported(directory), before, "weights of a snapshot's export", exact=True)


def _exported(directory: Path) -> dict[str, Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def an_export_is_the_same_model(case: Case) -> None:
    """``AutoModelForCausalLM`` and ``AutoTokenizer`` load it, and log-probs are the same."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    strategy = case.ready(PlainAdam(lr=1e-2))
    strategy.optimizer_step([random_batch()], objective, LOGPROB)
    directory = case.directory / "exported"
    directory.mkdir()
    strategy.export_hf(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    batch = random_batch(seed=1)
    (ours,) = strategy.forward([batch], LOGPROB)
    with torch.no_grad():
        theirs = plain_outputs(model, batch).logprob_T
    assert ours.logprob_T is not None
    assert theirs is not None
    mask_T = batch["loss_mask"]
    same(ours.logprob_T[mask_T], theirs[mask_T], "log-probs of the exported model")
    assert len(AutoTokenizer.from_pretrained(directory)) == 64, "the tokenizer was not exported"


def weights_of_another_role_are_taken_or_averaged(case: Case) -> None:
    """``copy_from`` follows its formula, and goes on so after ``save`` and ``load``."""
    policy, reference = case.ready(PlainSGD(lr=0.5)), case.ready(init_seed=1)
    if type(reference).copy_from is Strategy.copy_from:
        return
    expected = tensors(reference)
    for seed, decay in enumerate((0.75, 0.5, 0.0, 0.9)):
        policy.optimizer_step([random_batch(seed=seed)], objective, LOGPROB)
        taken = tensors(policy)
        reference.copy_from(policy, decay=decay)
        expected = {name: decay * tensor + (1 - decay) * taken[name] for name, tensor in expected.items()}
        same_weights(tensors(reference), expected, f"weights after copy_from with decay={decay:g}", tolerance=1e-6)
    same_weights(tensors(policy), taken, "weights of the role that was copied from", exact=True)
    directory = case.directory / "averaged"
    directory.mkdir()
    reference.save(directory)
    loaded = case.ready(init_seed=2)
    loaded.load(directory)
    for strategy in (reference, loaded):
        strategy.copy_from(policy, decay=0.9)
    same_weights(tensors(loaded), tensors(reference), "averages after loading", exact=True)
