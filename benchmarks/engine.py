"""Figure 9: tokens per second of the ``transformers`` engine against ``model.generate``, interleaved in one run.

The same model, prompts, lengths and threads on both sides. Ours returns log-probs; ``generate`` does not, and runs
batches of as many rows as we have slots, each to its longest row. Tokens count as asked for.

    python benchmarks/engine.py --threads 1 --rounds 5
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from areal_lit.models import load_causal_lm
from areal_lit.types import ModelSpec, Sampling
from areal_lit_inference.transformers.engine import Engine
from areal_lit_inference.transformers.model import ServedModel
from areal_lit_inference.transformers.rows import Sequence
from areal_lit_inference.transformers.sampling import seed_state
from areal_lit_inference.transformers.stopping import Stopping

CONFIG = {
    "model_type": "qwen3", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}  # fmt: skip
SLOTS = 64
PROMPT_TOKENS = 16


def ours(served: ServedModel, prompt: np.ndarray, budgets: list[int]) -> None:
    """All requests through one engine."""
    stopping = Stopping(end_token_ids=(), vocab_size=served.vocab_size, decode=str)
    engine = Engine(served, stopping=stopping, max_slots=SLOTS, max_prefill_tokens=8192, version=0)
    for number, budget in enumerate(budgets):
        sampling = Sampling(max_new_tokens=budget, ignore_eos=True)
        engine.submit(Sequence(number=number, token_ids=prompt, sampling=sampling, noise=seed_state(number)))
    drawn = 0
    while engine.num_active or engine.waiting:
        drawn += sum(len(finished.token_ids) for finished in engine.step())
    assert drawn == sum(budgets)


def theirs(model: Any, prompt: np.ndarray, budgets: list[int]) -> None:
    """``generate`` over batches in order."""
    for start in range(0, len(budgets), SLOTS):
        batch = budgets[start : start + SLOTS]
        ids = torch.from_numpy(prompt)[None].expand(len(batch), -1)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max(batch), do_sample=True, top_k=0, pad_token_id=0
        )


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(name: str, budgets: list[int], served: ServedModel, model: Any, rounds: int) -> None:
    """Print both sides' medians and the median of the paired ratios."""
    prompt = np.random.default_rng(0).integers(3, 60, PROMPT_TOKENS)
    pairs = []
    for _ in range(rounds + 1):
        ours_s = seconds(lambda: ours(served, prompt, budgets))
        theirs_s = seconds(lambda: theirs(model, prompt, budgets))
        pairs.append((ours_s, theirs_s))
    pairs = pairs[1:]
    tokens = sum(budgets)
    mine, other = (tokens / statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{name:28s} ours {mine:8.0f} tokens/s   generate {other:8.0f} tokens/s   ratio {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as directory:
        spec = ModelSpec(path=directory, config=CONFIG)
        served, model = ServedModel(spec, device="cpu"), load_causal_lm(spec)
    model.generation_config.eos_token_id = None
    draw = random.Random(0)
    lognormal = [min(512, max(4, int(draw.lognormvariate(3.6, 0.9)))) for _ in range(256)]
    compare("equal, 64 x 64", [64] * 64, served, model, arguments.rounds)
    compare("lognormal, 256 over 64 slots", lognormal, served, model, arguments.rounds)


if __name__ == "__main__":
    main()
