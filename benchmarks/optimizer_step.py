"""One optimizer step of strategy `single` against the same step written in plain PyTorch.

    python benchmarks/optimizer_step.py --repeats 15

Both sides alternate in one process on the same model, tokens and threads. Plain: a padded batch through the model's
own attention, ``log_softmax``, the masked mean, ``clip_grad_norm_`` and a fused ``AdamW``. Ours: ``optimizer_step``
on one packed micro-batch with the same objective. Prints medians of CPU seconds and the median of paired ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

from areal_lit.models import load_causal_lm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import CORE_COLUMNS, Loss, TokenBatch, TokenOutputs
from areal_lit_optimizers.adamw import AdamW
from areal_lit_single.strategy import Single

MODELS = {
    "0.8M": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32},
    "7M": {"hidden_size": 320, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 40},
}


def lengths_of(shape: str) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    if shape == "equal 128 x 11":
        return [11] * 128
    if shape == "ragged 128 x 6..13":
        return torch.randint(6, 14, (128,), generator=generator).tolist()
    return (torch.empty(64).geometric_(1 / 64, generator=generator).long().clamp(1, 512) + 6).tolist()


def make_batch(lengths: list[int], prompt: int) -> TokenBatch:
    length_S = torch.tensor(lengths)
    position_T = torch.cat([torch.arange(n) for n in lengths])
    mask_T = position_T >= prompt
    columns = {
        "token": torch.randint(64, (int(length_S.sum()),), generator=torch.Generator().manual_seed(1)),
        "segment": torch.repeat_interleave(torch.arange(len(lengths)), length_S),
        "position": position_T,
        "loss_mask": mask_T,
        "token_weight": mask_T / mask_T.sum(),
        "length": length_S,
        "atom": torch.arange(len(lengths)),
    }
    return TokenBatch(columns=columns, dims=CORE_COLUMNS, num_atoms=len(lengths))


def objective(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    assert outputs.logprob_T is not None
    return Loss(values=-outputs.logprob_T)


def plain_step(model: torch.nn.Module, batch: TokenBatch, prompt: int) -> Callable[[], float]:
    rows = batch["token"].split(batch["length"].tolist())
    ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    real = torch.arange(ids.shape[1]) < batch["length"][:, None]
    chosen = (real & (torch.arange(ids.shape[1]) >= prompt))[:, 1:]
    attention_mask = None if bool(real.all()) else real.long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step() -> float:
        logits = model(input_ids=ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1]
        logprob = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        loss = -(logprob * chosen).sum() / chosen.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def compare(size: str, shape: str, repeats: int) -> str:
    prompt = 6
    batch = make_batch(lengths_of(shape), prompt)
    with tempfile.TemporaryDirectory() as directory:
        spec = tiny_spec(
            directory,
            **MODELS[size],
            num_key_value_heads=MODELS[size]["num_attention_heads"] // 2,
            intermediate_size=3 * MODELS[size]["hidden_size"],
            max_position_embeddings=1024,
            initializer_range=0.02,
        )
        single = Single()
        single.setup(spec, optimizer=AdamW(lr=1e-4))
        plain = plain_step(load_causal_lm(spec).train(), batch, prompt)

    def ours() -> float:
        metrics = single.optimizer_step([batch], objective, frozenset({"logprob"}))
        return next(m.value for m in metrics if m.name == "loss")

    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    for repeat in range(repeats + 2):
        losses = {}
        for side, step in (("ours", ours), ("plain", plain)):
            start = time.process_time()
            losses[side] = step()
            if repeat >= 2:
                seconds[side].append(time.process_time() - start)
        assert abs(losses["ours"] - losses["plain"]) < 1e-3, losses
    ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
    median = {side: 1000 * statistics.median(values) for side, values in seconds.items()}
    return f"| {size} | {shape} | {batch.num_tokens} | {median['ours']:.1f} | {median['plain']:.1f} | {ratio:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| model | batch | tokens | ours, CPU ms | plain, CPU ms | ratio |\n|---|---|---|---|---|---|")
    for size in MODELS:
        for shape in ("equal 128 x 11", "ragged 128 x 6..13", "geometric 64, mean 64"):
            print(compare(size, shape, arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
