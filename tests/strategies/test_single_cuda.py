"""Single with flash attention. Other tests of strategies and engines take a CUDA device by themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from areal_lit.testing.strategy_case import PlainSGD, objective, random_batch, tensors
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import TokenBatch
from areal_lit.types import ModelSpec
from areal_lit_single.strategy import Single

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a CUDA device")

LOGPROB = frozenset({"logprob"})
CONFIGS = {
    "qwen3": {},
    "one head each": {"num_key_value_heads": 2},
    "window of 4": {"model_type": "mistral", "sliding_window": 4},
}


def ready(spec: ModelSpec, attention: str) -> Single:
    single = Single(device="cuda", attention=attention)
    single.setup(spec, optimizer=PlainSGD(lr=1.0, max_grad_norm=0))
    return single


def logprobs(single: Single, batch: TokenBatch) -> torch.Tensor:
    (outputs,) = single.forward([batch], LOGPROB)
    return outputs.logprob_T[batch["loss_mask"]]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_flash_attention_is_no_further_from_float32_than_the_models_own(config: dict, tmp_path: Path) -> None:
    batch, exact = random_batch((40, 7, 1, 129, 12)), tiny_spec(tmp_path, **config)
    expected = logprobs(ready(exact, "padded"), batch)
    half = replace(exact, dtype="bfloat16")
    error = {name: (logprobs(ready(half, name), batch) - expected).norm() for name in ("padded", "varlen")}
    assert error["varlen"] <= 1.5 * error["padded"]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_its_gradients_are_those_of_the_models_own(config: dict, tmp_path: Path) -> None:
    batch, exact = random_batch((40, 7, 1, 129, 12)), tiny_spec(tmp_path, **config)

    def gradient(spec: ModelSpec, attention: str) -> torch.Tensor:
        single = ready(spec, attention)
        masters = single._trainable.masters
        before = torch.cat([p.detach().flatten() for p in masters.values()])
        single.optimizer_step([batch], objective, LOGPROB)
        return before - torch.cat([p.detach().flatten() for p in masters.values()])

    expected = gradient(exact, "padded")
    half = replace(exact, dtype="bfloat16")
    error = {name: (gradient(half, name) - expected).norm() / expected.norm() for name in ("padded", "varlen")}
    assert error["varlen"] <= 1.5 * error["padded"] + 1e-3


def test_no_token_sees_another_sequence(tmp_path: Path) -> None:
    single = ready(replace(tiny_spec(tmp_path), dtype="bfloat16"), "varlen")
    batch = random_batch((40, 7, 1, 129, 12))
    token_T = batch["token"].clone()
    token_T[:40] = (token_T[:40] + 1) % 64
    changed = replace(batch, columns={**batch.columns, "token": token_T})
    later = batch["segment"][batch["loss_mask"]] > 0
    assert torch.equal(logprobs(single, batch)[later], logprobs(single, changed)[later])


def test_half_precision_takes_it_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        single = ready(replace(tiny_spec(tmp_path), dtype="bfloat16"), "auto")
    assert "varlen attention" in caplog.text
    assert {tensor.dtype for tensor in tensors(single).values()} == {torch.bfloat16}
