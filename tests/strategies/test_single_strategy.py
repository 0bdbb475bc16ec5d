"""Single: what the conformance suite leaves open. Precision, freezing, heads, hooks, refusals."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from areal_lit.contracts.strategy import Rank
from areal_lit.models import SCALAR_HEAD_FILE, load_causal_lm
from areal_lit.testing.strategy_case import PlainSGD, objective, random_batch, tensors, value_of
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import Loss
from areal_lit.types import ModelSpec
from areal_lit_optimizers.adamw import AdamW
from areal_lit_single.network import Network
from areal_lit_single.snapshot import STATE_FILE
from areal_lit_single.strategy import Single

LOGPROB, VALUE = frozenset({"logprob"}), frozenset({"value"})


def ready(spec: ModelSpec, *, lr: float = 1e-3, head: str = "lm", **options) -> Single:
    single = Single(**options)
    single.setup(spec, head=head, optimizer=AdamW(lr=lr))
    return single


def value_objective(outputs, batch) -> Loss:
    return Loss(values=(outputs.value_T - 1).square())


def test_small_steps_add_up_under_bfloat16(tmp_path: Path) -> None:
    """A step of 1e-4 is below bfloat16's resolution at 1.0: without float32 masters nothing would ever move."""
    single = ready(replace(tiny_spec(tmp_path), dtype="bfloat16"), lr=1e-4)
    norm_weight = []
    for _ in range(40):
        single.optimizer_step([random_batch()], objective, LOGPROB)
        norm_weight.append(tensors(single)["model.norm.weight"])
    assert norm_weight[0].dtype == torch.bfloat16
    assert norm_weight[4].eq(1).all()
    assert norm_weight[-1].ne(1).any()


def test_bfloat16_gradients_accumulate_in_float32_and_resume_exactly(tmp_path: Path) -> None:
    spec = replace(tiny_spec(tmp_path), dtype="bfloat16")
    first, second = ready(spec), ready(replace(spec, init_seed=1))
    batches = [random_batch(seed=seed) for seed in range(3)]
    seen = []
    first.on_before_optimizer_step = lambda network: seen.extend(p.master.grad.dtype for p in network.parameters())
    first.optimizer_step(batches, objective, LOGPROB)
    assert set(seen) == {torch.float32}
    (tmp_path / "saved").mkdir()
    first.save(tmp_path / "saved")
    second.load(tmp_path / "saved")
    for single in (first, second):
        single.optimizer_step(batches, objective, LOGPROB)
    masters = zip(first._trainable.masters.items(), second._trainable.masters.values(), strict=True)
    assert all(torch.equal(ours, theirs) for (_, ours), theirs in masters)


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("how", ["a pickle", "the file of torch.save"])
def test_loading_a_checkpoint_runs_no_code(tmp_path: Path, how: str) -> None:
    single = ready(tiny_spec(tmp_path))
    file = tmp_path / STATE_FILE
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    if how == "the file of torch.save":
        torch.save({"weights": Bomb(tmp_path / "ran")}, file)
    with pytest.raises(SafetensorError):
        single.load(tmp_path)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists(), "it would have gone off"


def test_the_hook_sees_clipped_gradients_and_is_not_called_for_a_skipped_step(tmp_path: Path) -> None:
    single = Single()
    single.setup(tiny_spec(tmp_path), optimizer=PlainSGD(lr=0.1, max_grad_norm=0.01))
    norms = []
    single.on_before_optimizer_step = lambda network: norms.append(
        float(torch.nn.utils.get_total_norm([p.grad for p in network.parameters()]))
    )
    single.optimizer_step([random_batch()], objective, LOGPROB)
    single.optimizer_step([random_batch()], lambda o, b: Loss(values=o.logprob_T * float("nan")), LOGPROB)
    assert norms == [pytest.approx(0.01, rel=1e-3)]


def test_frozen_parameters_stay_and_a_pattern_must_match(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, tie_word_embeddings=False)
    single = ready(spec, freeze=["model.embed_tokens.*", "*layers.0.*"])
    before = tensors(single)
    single.optimizer_step([random_batch()], objective, LOGPROB)
    moved = {name for name, tensor in tensors(single).items() if not torch.equal(tensor, before[name])}
    assert "lm_head.weight" in moved
    assert not any("embed_tokens" in name or "layers.0." in name for name in moved)
    with pytest.raises(ValueError, match=r"'layers\.9' matches no parameter"):
        ready(spec, freeze=["layers.9"])
    with pytest.raises(ValueError, match="no parameter to train"):
        ready(spec, freeze=["model.*", "lm_head.*"])


def test_a_value_head_learns_is_saved_and_exported(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, tie_word_embeddings=False)
    single = ready(spec, lr=1e-2, head="value")
    batch = random_batch()
    losses = [value_of(single.optimizer_step([batch], value_objective, VALUE), "loss") for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]
    assert not single.network.lm.lm_head.weight.requires_grad
    (tmp_path / "exported").mkdir()
    single.export_hf(tmp_path / "exported")
    again = Single()
    again.setup(ModelSpec(path=str(tmp_path / "exported")), head="value")
    (ours,), (theirs,) = single.forward([batch], VALUE), again.forward([batch], VALUE)
    torch.testing.assert_close(ours.value_T, theirs.value_T)
    torch.testing.assert_close(ours.final_value_S, theirs.final_value_S)


def test_a_moving_average_under_bfloat16_is_that_of_float32_rounded(tmp_path: Path) -> None:
    """A change of 1% of a small difference is below bfloat16's resolution: rounded each time, nothing would move."""
    spec = replace(tiny_spec(tmp_path), dtype="bfloat16")
    policy, reference, resumed = ready(spec), Single(), Single()
    reference.setup(replace(spec, init_seed=1))
    resumed.setup(spec)
    start, target = tensors(reference), tensors(policy)
    for _ in range(20):
        reference.copy_from(policy, decay=0.99)
    (tmp_path / "saved").mkdir()
    reference.save(tmp_path / "saved")
    resumed.load(tmp_path / "saved")
    for single in (reference, resumed):
        for _ in range(20):
            single.copy_from(policy, decay=0.99)
    kept = 0.99**40
    for name, tensor in tensors(resumed).items():
        assert torch.equal(tensor, tensors(reference)[name])
        expected = (kept * start[name].double() + (1 - kept) * target[name].double()).float()
        torch.testing.assert_close(tensor.float(), expected, rtol=2**-8, atol=1e-6)
    reference.copy_from(policy)
    (ours,), (theirs,) = policy.forward([random_batch()], LOGPROB), reference.forward([random_batch()], LOGPROB)
    assert torch.equal(ours.logprob_T, theirs.logprob_T)
    with pytest.raises(RuntimeError, match="frozen"):
        reference.optimizer_step([random_batch()], objective, LOGPROB)


def test_a_microbatch_without_loss_tokens_adds_nothing(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    batch = random_batch()
    empty = random_batch(seed=1)
    none = torch.zeros_like(empty["loss_mask"])
    empty = empty.with_columns(loss_mask=none, token_weight=none.float())
    with_fill, without = ready(spec), ready(spec)
    with_fill.optimizer_step([empty, batch], objective, LOGPROB)
    without.optimizer_step([batch], objective, LOGPROB)
    ours, theirs = tensors(with_fill), tensors(without)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_dropout_is_off_even_where_layers_are_recomputed(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, attention_dropout=0.5)
    batch = random_batch()
    results = []
    for options in ({}, {"gradient_checkpointing": True}, {"gradient_checkpointing": True, "attention": "padded"}):
        single = ready(spec, **options)
        metrics = single.optimizer_step([batch], objective, LOGPROB)
        results.append(value_of(metrics, "grad_norm"))
    assert results == pytest.approx([results[0]] * 3, rel=1e-5)


def test_recomputed_layers_really_are(tmp_path: Path) -> None:
    single = ready(tiny_spec(tmp_path), gradient_checkpointing=True)
    before = single.network._current.num_calls
    single.optimizer_step([random_batch()], objective, LOGPROB)
    assert single.network._current.num_calls - before == 2 * 2


def test_a_constructed_strategy_pickles_and_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(Single(freeze=("a",)))).freeze == ("a",)
    with pytest.raises(ValueError, match="runs on 1 rank, got 2"):
        Single().setup(tiny_spec(tmp_path), rank=Rank(rank=0, num_ranks=2))
    with pytest.raises(ValueError, match="max_tokens_per_microbatch must be >= 1, got 0"):
        Single(max_tokens_per_microbatch=0)
    greedy = random_batch().with_columns(temperature=torch.zeros(6))
    with pytest.raises(ValueError, match="temperature > 0"):
        ready(tiny_spec(tmp_path)).forward([greedy], LOGPROB)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device this machine has")
def test_no_silent_fallback_to_another_device(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no CUDA device"):
        Single(device="cuda").setup(tiny_spec(tmp_path))


@pytest.mark.parametrize("broken", ["model.layers.0.mlp.up_proj.weight", "weight"])
def test_weights_that_are_no_numbers_are_named_whatever_they_are_for(tmp_path: Path, broken: str) -> None:
    """Those of the model, and those of the head beside it."""
    spec = tiny_spec(tmp_path)
    (tmp_path / "hf").mkdir()
    ready(spec, head="value").export_hf(tmp_path / "hf")
    file = tmp_path / "hf" / (SCALAR_HEAD_FILE if broken == "weight" else "model.safetensors")
    saved = load_file(file)
    saved[broken][0, 0] = float("nan")
    save_file(saved, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"weights must be finite, and 1 of .*, the first {broken}"):
        ready(ModelSpec(path=str(tmp_path / "hf")), head="value")


def test_logits_that_are_no_numbers_are_told_as_such(tmp_path: Path) -> None:
    lm = load_causal_lm(tiny_spec(tmp_path))
    with torch.no_grad():
        lm.model.norm.weight.fill_(3e38)
    with pytest.raises(ValueError, match=r"has logits of NaN or infinity, .* grow beyond torch\.float32"):
        Network(lm)
