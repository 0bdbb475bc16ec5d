"""Sampling: the noise is a request's own, and truncation keeps exactly what it says."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.types import Sampling
from areal_lit_inference.transformers.sampling import SamplingRows, draw, seed_state, truncate, uniform
from areal_lit_inference.transformers.spans import plan_spans

CPU = torch.device("cpu")


def noise(count: int) -> torch.Tensor:
    states = np.asarray([seed_state(seed) for seed in range(count)])
    return torch.from_numpy(uniform(states, np.full(count, 3)))


def test_frequencies_are_the_models_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -3.0])
    count = 40_000
    rows = SamplingRows.gather([Sampling(temperature=0.5)] * count, 4, CPU)
    token, logprob = draw(logits.repeat(count, 1), rows, noise(count))
    expected = (logits / 0.5).softmax(-1)
    torch.testing.assert_close(token.bincount(minlength=4) / count, expected, atol=0.01, rtol=0)
    torch.testing.assert_close(logprob, expected.log()[token])


def test_neighbouring_seeds_and_positions_draw_unrelated_noise() -> None:
    states = np.asarray([seed_state(seed) for seed in range(2000)])
    by_position = np.stack([uniform(states, np.full(2000, p)) for p in range(4)])
    correlations = np.corrcoef(np.concatenate([by_position, np.roll(by_position, 1, axis=1)]))
    assert np.abs(correlations - np.eye(8)).max() < 0.1
    assert by_position.min() >= 0
    assert by_position.max() < 1


@given(st.integers(-(2**70), 2**70))
def test_any_integer_is_a_seed(seed: int) -> None:
    assert seed_state(seed) == seed_state(seed + 2**64)


@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=30).filter(lambda w: sum(w) > 0.01),
    st.integers(1, 40),
    st.floats(0.01, 1),
)
def test_truncation_keeps_the_smallest_set(weights: list[float], top_k: int, top_p: float) -> None:
    weight = torch.tensor([weights])
    kept = truncate(weight, torch.tensor([[top_k]]), torch.tensor([[top_p]]))[0]
    order = weight[0].sort(descending=True, stable=True).indices[:top_k].tolist()
    alive = [i for i in order if kept[i] > 0]
    assert alive[0] == order[0], "the likeliest token always stays"
    assert kept.count_nonzero() == len(alive), "nothing beyond the top-k may stay"
    assert kept[alive].tolist() == weight[0, alive].tolist(), "what stays keeps its weight"
    mass, wanted, rounding = float(kept.double().sum()), top_p * float(weight[0, order].double().sum()), 1e-5
    assert mass >= wanted - rounding, "too little stays"
    assert mass - float(kept[alive[-1]]) <= wanted + rounding, "one token fewer would have been enough"


def test_truncated_rows_never_draw_what_was_cut_and_report_full_logprobs() -> None:
    logits = torch.randn(600, 50, generator=torch.Generator().manual_seed(0))
    options = [Sampling(), Sampling(top_k=2), Sampling(top_p=0.1), Sampling(temperature=0.0, top_k=5)] * 150
    token, logprob = draw(logits, SamplingRows.gather(options, 50, CPU), noise(600))
    rank = (logits > logits.gather(1, token[:, None])).sum(-1)
    assert rank[1::4].max() == 1
    assert rank[3::4].max() == 0
    assert rank[0::4].max() > 5
    torch.testing.assert_close(logprob, logits.log_softmax(-1).gather(1, token[:, None])[:, 0])


def test_tokens_of_no_probability_are_never_drawn_even_by_the_largest_noise() -> None:
    logits = torch.tensor([[0.3, 0.1, -torch.inf, -torch.inf]])
    rows = SamplingRows.gather([Sampling()], 4, CPU)
    for u in (0.0, 1 - 2.0**-52):
        token, _ = draw(logits, rows, torch.tensor([u], dtype=torch.float64))
        assert token.item() in (0, 1)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=80))
def test_spans_cover_every_slot_to_its_length(lengths: list[int]) -> None:
    spans = plan_spans(np.asarray(lengths))
    assert [s.first for s in spans] == [0, *(s.stop for s in spans[:-1])]
    assert spans[-1].stop == len(lengths)
    for span in spans:
        assert span.length == max(lengths[span.first : span.stop]) + 1


def test_a_top_k_beyond_the_vocabulary_and_any_integer_keeps_everything() -> None:
    rows = SamplingRows.gather([Sampling(top_k=2**63 + 1)], 4, CPU)
    assert rows.top_k_M1 is not None
    assert rows.top_k_M1.tolist() == [[4]]
