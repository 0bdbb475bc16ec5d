"""The engine against the model's own forward pass, over ragged requests that join and leave."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_lit.models import load_causal_lm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.types import LOWEST_TEMPERATURE, ModelSpec, Sampling, TensorInfo
from areal_lit_inference.transformers import engine as engine_module
from areal_lit_inference.transformers.engine import Engine
from areal_lit_inference.transformers.model import ServedModel
from areal_lit_inference.transformers.rows import Finished, Sequence
from areal_lit_inference.transformers.sampling import seed_state
from areal_lit_inference.transformers.scoring import CHUNK_TOKENS, Asked
from areal_lit_inference.transformers.stopping import Stopping
from areal_lit_inference.transformers.waiting import URGENT_SLOTS

LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-6}
QWEN2 = {"model_type": "qwen2"}


def make_engine(served: ServedModel, **options: Any) -> Engine:
    values: dict[str, Any] = {"max_slots": 4, "max_prefill_tokens": 64, "version": 0, **options}
    stopping = Stopping(end_token_ids=(1,), vocab_size=served.vocab_size, decode=lambda ids: "".join(map(chr, ids)))
    return Engine(served, stopping=stopping, **values)


def sequence(number: int, token_ids: list[int], budget: int, **sampling: Any) -> Sequence:
    return Sequence(
        number=number, token_ids=np.asarray(token_ids, np.int64), noise=seed_state(number),
        sampling=Sampling(max_new_tokens=budget, **sampling),
    )  # fmt: skip


def run(engine: Engine, *sequences: Sequence) -> dict[int, Finished]:
    done = [refused for s in sequences if (refused := engine.submit(s))]
    while engine.num_active or engine.waiting:
        done += engine.step()
    return {f.number: f for f in done}


def reference(model: Any, token_ids: np.ndarray, temperature: float) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids)[None]).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.from_numpy(token_ids)[1:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return tiny_spec(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def served(spec: ModelSpec) -> ServedModel:
    return ServedModel(spec)


@pytest.fixture(scope="module")
def model(spec: ModelSpec) -> Any:
    return load_causal_lm(spec)


prompts = st.lists(st.integers(2, 63), min_size=1, max_size=20)
requests = st.lists(
    st.tuples(prompts, st.integers(1, 40), st.sampled_from([0.0, 0.7, 1.0]), st.booleans(), st.integers(1, 3)),
    min_size=1, max_size=9,
)  # fmt: skip


@settings(max_examples=30)
@given(requests=requests, max_slots=st.integers(1, 6), span_cost=st.sampled_from([1, 512]))
def test_every_logprob_is_the_models_own(
    served: ServedModel, model: Any, requests: Any, max_slots: int, span_cost: int
) -> None:
    sequences = []
    for prompt, budget, temperature, ignore, copies in requests:
        for _ in range(copies):
            options = {"temperature": temperature, "ignore_eos": ignore}
            sequences.append(sequence(len(sequences), prompt, budget, **options))
    done = run(make_engine(served, max_slots=max_slots, span_cost=span_cost), *sequences)
    assert sorted(done) == list(range(len(sequences)))
    for s in sequences:
        f = done[s.number]
        assert f.stop_reason == ("stop" if f.token_ids[-1] == 1 and not s.sampling.ignore_eos else "length")
        assert len(f.token_ids) == s.sampling.max_new_tokens or f.stop_reason == "stop"
        whole = np.concatenate([s.token_ids, f.token_ids])
        expected = reference(model, whole, s.sampling.temperature or 1.0)[len(s.token_ids) - 1 :]
        np.testing.assert_allclose(f.logprobs, expected, atol=2e-5)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, {"num_key_value_heads": 2}, {"tie_word_embeddings": False}])
def test_other_architectures_are_served(tmp_path: Path, config: dict[str, Any]) -> None:
    spec = tiny_spec(tmp_path, **config)
    served = ServedModel(spec)
    served.check_parity()
    done = run(make_engine(served), *(sequence(i, [5, 6, 7 + i % 2], 12, ignore_eos=True) for i in range(6)))
    whole = np.concatenate([[5, 6, 8], done[1].token_ids])
    np.testing.assert_allclose(done[1].logprobs, reference(load_causal_lm(spec), whole, 1.0)[2:], atol=2e-5)


def test_a_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    served = ServedModel(tiny_spec(tmp_path, model_type="granite", logits_scaling=3.0))
    with pytest.raises(ValueError, match="'granite' computes something the transformers engine does not"):
        served.check_parity()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_depth_is_no_reason_to_refuse_a_model_of_low_precision(dtype: str, tmp_path: Path) -> None:
    """In bfloat16 two ways to compute 28 layers differ by more than 0.02, and a wrong model by more than both."""
    deep = {"num_hidden_layers": 28, "hidden_size": 128, "intermediate_size": 256}
    ServedModel(replace(tiny_spec(tmp_path, **deep), dtype=dtype)).check_parity()
    wrong = ServedModel(replace(tiny_spec(tmp_path, model_type="granite", logits_scaling=3.0, **deep), dtype=dtype))
    with pytest.raises(ValueError, match="'granite' computes something"):
        wrong.check_parity()


class CountingModel(ServedModel):
    """Notes how many tokens each forward pass is fed."""

    def hidden(self, token_BT: Tensor, position_BT: Tensor, plan: Any) -> Tensor:
        self.fed = [*getattr(self, "fed", []), token_BT.numel()]
        return super().hidden(token_BT, position_BT, plan)


def test_one_group_is_prefilled_once(spec: ModelSpec) -> None:
    served = CountingModel(spec)
    run(make_engine(served, max_slots=8), *(sequence(i, [7] * 30, 1) for i in range(8)))
    assert served.fed == [30]
    served.fed = []
    engine = make_engine(served, max_slots=8)
    engine.submit(sequence(0, [7] * 30, 20, ignore_eos=True))
    engine.step()
    done = run(engine, sequence(1, [7] * 30, 5, ignore_eos=True))
    assert 30 not in served.fed[1:], "a late member of a running group must not be prefilled again"
    alone = run(make_engine(served), sequence(1, [7] * 30, 5, ignore_eos=True))
    assert done[1].token_ids.tolist() == alone[1].token_ids.tolist()


@settings(max_examples=15)
@given(requests=requests)
def test_deterministic_numbers_do_not_depend_on_company(served: ServedModel, model: Any, requests: Any) -> None:
    sequences = [sequence(i, p, b, ignore_eos=True) for i, (p, b, *_) in enumerate(requests)]
    together = run(make_engine(served, max_slots=8, deterministic=True), *sequences)
    for s in sequences:
        again = sequence(s.number, s.token_ids.tolist(), s.sampling.max_new_tokens, ignore_eos=True)
        alone = run(make_engine(served, max_slots=8, deterministic=True), again)[s.number]
        assert together[s.number].token_ids.tobytes() == alone.token_ids.tobytes()
        assert together[s.number].logprobs.tobytes() == alone.logprobs.tobytes()
        expected = reference(model, np.concatenate([s.token_ids, alone.token_ids]), 1.0)[len(s.token_ids) - 1 :]
        np.testing.assert_allclose(alone.logprobs, expected, atol=2e-5)


def test_interruption_returns_partials_and_new_weights_recompute_the_prompt(served: ServedModel, model: Any) -> None:
    engine = make_engine(served)
    engine.submit(sequence(0, [5, 6, 7], 30, ignore_eos=True))
    for _ in range(10):
        engine.step()
    (partial,) = engine.interrupt()
    assert (partial.stop_reason, len(partial.token_ids), partial.version) == ("interrupted", 11, 0)
    weights = {name: p.detach() * 1.3 for name, p in model.named_parameters()}
    own = [(name, p.detach().clone()) for name, p in model.named_parameters()]
    try:
        engine.load(1, weights.items())
        resumed = [5, 6, 7, *partial.token_ids.tolist()]
        rest = run(engine, sequence(0, resumed, 19, ignore_eos=True))[0]
        assert rest.version == 1
        model.load_state_dict(weights, strict=False)
        expected = reference(model, np.concatenate([resumed, rest.token_ids]), 1.0)[len(resumed) - 1 :]
        np.testing.assert_allclose(rest.logprobs, expected, atol=2e-5)
    finally:
        model.load_state_dict(dict(own), strict=False)
        engine.load(2, own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "missing for 1 parameters: model.norm.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "'extra' arrived"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), "must have shape"),
    ],
)
@pytest.mark.parametrize("announced", [False, True])
def test_weights_that_do_not_fit_are_refused(spec: ModelSpec, change: Any, message: str, announced: bool) -> None:
    served = ServedModel(spec)
    engine = make_engine(served)
    weights = {name: p.detach().clone() for name, p in served.model.named_parameters()}
    change(weights)
    manifest = [TensorInfo.of(*named) for named in weights.items()] if announced else []
    with pytest.raises(ValueError, match=message):
        engine.load(1, weights.items(), manifest)
    assert engine.is_torn is not announced, "what was announced wrongly must not touch a parameter"
    refused = engine.submit(sequence(0, [5], 1))
    assert (refused is not None and "half-way" in refused.error) is not announced


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(spec: ModelSpec, value: float) -> None:
    engine = make_engine(ServedModel(spec))
    weights = {name: p.detach().clone() for name, p in engine.served.model.named_parameters()}
    weights["model.norm.weight"][3] = value
    with pytest.raises(ValueError, match=r"1 of \d+ parameters hold NaN or infinity, the first model\.norm\.weight"):
        engine.load(1, weights.items())
    refused = engine.submit(sequence(0, [5], 1))
    assert refused is not None
    assert "half-way" in refused.error, "half of what was refused may have been copied"


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_p": 0.5}])
def test_logits_that_are_no_numbers_end_the_engine_with_their_cause(spec: ModelSpec, sampling: dict[str, Any]) -> None:
    engine = make_engine(ServedModel(spec), version=7)
    with torch.no_grad():
        engine.served.parameters["model.norm.weight"].fill_(3e38)
    engine.served.check_finite()
    with pytest.raises(FloatingPointError, match=r"under version 7 of the weights must be finite.* torch\.float32"):
        run(engine, sequence(0, [5, 6], 4, **sampling))
    with pytest.raises(FloatingPointError, match="must be finite"):
        engine.score([Asked(token_ids=np.asarray([5, 6, 7]))])


def test_the_lowest_temperature_still_has_finite_logprobs(served: ServedModel) -> None:
    engine = make_engine(served)
    done = run(engine, sequence(0, [5, 6], 20, temperature=LOWEST_TEMPERATURE, ignore_eos=True))[0]
    whole = Asked(token_ids=np.concatenate([[5, 6], done.token_ids]), temperature=LOWEST_TEMPERATURE)
    np.testing.assert_allclose(done.logprobs, engine.score([whole])[0].logprobs[2:], atol=1e-3)


def test_requests_out_of_bounds_are_refused_one_by_one(served: ServedModel) -> None:
    done = run(
        make_engine(served), sequence(0, [5] * 500, 13), sequence(1, [64], 1), sequence(2, [], 1), sequence(3, [5], 1),
        sequence(4, [5] * 511, 1),
    )  # fmt: skip
    assert "500 prompt tokens + max_new_tokens 13 must be <= 512" in done[0].error
    assert "token ids must be in [0, 64)" in done[1].error
    assert "at least one token" in done[2].error
    assert not done[3].error
    assert len(done[4].token_ids) == 1


def test_stop_strings_and_tokens_count_only_what_was_drawn(served: ServedModel) -> None:
    free = run(make_engine(served), sequence(0, [65 - 10, 56], 20, ignore_eos=True))[0].token_ids
    text = "".join(map(chr, free.tolist()))
    stop = text[9:12]
    stopped = run(make_engine(served), sequence(0, [65 - 10, 56], 20, stop=(stop,)))[0]
    end = text.index(stop) + 3
    assert (stopped.stop_reason, stopped.token_ids.tolist()) == ("stop", free[:end].tolist())
    straddling = chr(56) + text[0]
    kept = run(make_engine(served), sequence(0, [65 - 10, 56], 3, stop=(straddling,)))[0]
    assert kept.stop_reason == "length" or straddling in text[:3]


def test_cancelled_requests_free_their_slots(served: ServedModel) -> None:
    engine = make_engine(served, max_slots=3)
    for i in range(5):
        engine.submit(sequence(i, [5, 6, 7 + i], 30, ignore_eos=True))
    engine.step()
    engine.cancel({0, 3})
    assert engine.num_active == 2
    done = run(engine)
    assert sorted(done) == [1, 2, 4]
    alone = run(make_engine(served), sequence(2, [5, 6, 9], 30, ignore_eos=True))
    assert done[2].token_ids.tolist() == alone[2].token_ids.tolist()


@pytest.mark.parametrize("deterministic", [False, True])
def test_scores_of_many_sequences_are_the_models_of_each(served: ServedModel, model: Any, deterministic: bool) -> None:
    rng = np.random.default_rng(0)
    asked = [
        Asked(token_ids=rng.integers(2, 64, n), temperature=temperature, k=k)
        for n, temperature, k in ((CHUNK_TOKENS - 3, 0.7, 3), (1, 1.0, 2), (9, 1.3, 0), (9, 0.7, 64), (30, 1.0, 1))
    ]
    answers = make_engine(served, max_prefill_tokens=45, deterministic=deterministic).score(asked)
    for a, scores in zip(asked, answers, strict=True):
        assert scores.logprobs[0] == 0
        np.testing.assert_allclose(scores.logprobs[1:], reference(model, a.token_ids, a.temperature), atol=2e-5)
        assert scores.topk_token_ids.shape == scores.topk_logprobs.shape == (len(a.token_ids), a.k)
        assert not scores.topk_token_ids[0].any()
        assert not scores.topk_logprobs[0].any()
        with torch.no_grad():
            logits = model(torch.from_numpy(a.token_ids)[None]).logits[0, :-1].float() / a.temperature
        value, token = logits.log_softmax(-1).topk(a.k)
        np.testing.assert_allclose(scores.topk_logprobs[1:], value.numpy(), atol=2e-5)
        assert scores.topk_token_ids[1:].tolist() == token.tolist()


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"token_ids": [5, 6], "temperature": 0.005}, "temperature must be >= 0.01, got 0.005"),
        ({"token_ids": [5, 64]}, r"token ids must be in \[0, 64\), got 5 to 64"),
        ({"token_ids": []}, r"must have 1 to 512 tokens \(max_position_embeddings\), got 0"),
        ({"token_ids": [5] * 513}, "got 513"),
        ({"token_ids": [5], "k": 65}, r"k must be in \[0, 64\], the vocabulary, got 65"),
    ],
)
def test_a_sequence_that_cannot_be_scored_is_refused(served: ServedModel, asked: dict[str, Any], rule: str) -> None:
    made = Asked(**{**asked, "token_ids": np.asarray(asked["token_ids"], np.int64)})
    assert re.search(rule, make_engine(served).refusal_to_score(made))


def test_sorting_slots_by_length_moves_their_keys_and_values_too(served: ServedModel, model: Any) -> None:
    engine = make_engine(served, max_slots=8, span_cost=100)
    sequences = [sequence(i, [5 + i] * (60 if i % 2 else 2), 40, ignore_eos=True) for i in range(8)]
    for s in sequences:
        engine.submit(s)
        engine.step()
    for _ in range(engine_module.SORT_EVERY):
        engine.step()
    lengths = engine.rows.length[:8].tolist()
    assert lengths == sorted(lengths, reverse=True)
    assert [s.number for s in engine.rows.sequences] == [1, 3, 5, 7, 0, 2, 4, 6], "they arrived in order of number"
    done = run(engine)
    for s in sequences:
        whole = np.concatenate([s.token_ids, done[s.number].token_ids])
        expected = reference(model, whole, 1.0)[len(s.token_ids) - 1 :]
        np.testing.assert_allclose(done[s.number].logprobs, expected, atol=2e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_urgent_sequences_start_at_once_in_a_full_engine_and_change_no_other(
    served: ServedModel, deterministic: bool
) -> None:
    running = [sequence(i, [5 + i, 6, 7], 60, ignore_eos=True) for i in range(3)]
    queued = [sequence(10 + i, [9, 10 + i], 4, ignore_eos=True) for i in range(20)]
    urgent = [replace(sequence(90 + i, [5, 6, 7 + i], 8, ignore_eos=True), is_urgent=True) for i in range(2)]
    engine = make_engine(served, max_slots=3, deterministic=deterministic)
    for each in [*running, *queued]:
        assert engine.submit(each) is None
    engine.step()
    for each in urgent:
        assert engine.submit(each) is None
    done = [finished for _ in range(9) for finished in engine.step()]
    assert {finished.number for finished in done} == {90, 91}
    assert engine.num_active == 3
    together = {f.number: f for f in done} | run(engine)
    assert set(together) == {s.number for s in [*running, *queued, *urgent]}
    for each in [*running, urgent[1]]:
        alone = run(make_engine(served, deterministic=deterministic), replace(each, is_urgent=False, slot=-1))
        assert together[each.number].token_ids.tolist() == alone[each.number].token_ids.tolist()


def test_more_urgent_sequences_than_their_slots_come_before_all_others(served: ServedModel) -> None:
    engine = make_engine(served, max_slots=1)
    others = [sequence(i, [5, 6], 3, ignore_eos=True) for i in range(3)]
    urgent = [replace(sequence(90 + i, [7, 8], 3, ignore_eos=True), is_urgent=True) for i in range(6)]
    for each in [*others, *urgent]:
        engine.submit(each)
    order = []
    while engine.num_active or engine.waiting:
        order += [finished.number for finished in engine.step()]
        assert engine.num_active <= 1 + URGENT_SLOTS
    assert sorted(order[:6]) == [s.number for s in urgent]
