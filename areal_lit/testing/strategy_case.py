"""What the strategy suite runs: a case, random batches, an objective, and the same things in plain torch.

Shapes: T packed tokens, S segments, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_lit.contracts.optimizer import Optimizer
from areal_lit.contracts.strategy import Head, Output, Strategy
from areal_lit.models import load_causal_lm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import CORE_COLUMNS, Loss, TokenBatch, TokenOutputs
from areal_lit.types import Metric, ModelSpec

LENGTHS = (7, 12, 3, 12, 1, 5)
TOLERANCE = 2e-5
LOGPROB: frozenset[Output] = frozenset({"logprob"})


class PlainSGD(Optimizer):
    """Gradient descent: what a step changes is the gradient."""

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr)


class PlainAdam(Optimizer):
    """Adam with torch's defaults: has state that a checkpoint must carry."""

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr)


@dataclass(frozen=True)
class Case:
    """A strategy under test: how to construct one, and an empty directory."""

    make: Callable[[], Strategy]
    directory: Path

    def spec(self, **config: Any) -> ModelSpec:
        return tiny_spec(self.directory, **config)

    def ready(
        self, optimizer: Optimizer | None = None, *, head: Head = "lm", num_steps: int | None = None, init_seed: int = 0
    ) -> Strategy:
        strategy = self.make()
        strategy.setup(replace(self.spec(), init_seed=init_seed), head=head, optimizer=optimizer, num_steps=num_steps)
        return strategy

    def model(self) -> Any:
        """The same weights as a plain Hugging Face model."""
        return load_causal_lm(self.spec())


def random_batch(lengths: Sequence[int] = LENGTHS, *, seed: int = 0, vocabulary: int = 64) -> TokenBatch:
    """A packed batch of random tokens, masks, temperatures and ``token_weight``."""
    generator = torch.Generator().manual_seed(seed)
    length_S = torch.tensor(lengths)
    num_tokens, num_segments = int(length_S.sum()), len(lengths)
    position_T = torch.cat([torch.arange(n) for n in lengths])
    mask_T = (torch.rand(num_tokens, generator=generator) < 0.7) & (position_T > 0)
    columns = {
        "token": torch.randint(vocabulary, (num_tokens,), generator=generator),
        "segment": torch.repeat_interleave(torch.arange(num_segments), length_S),
        "position": position_T,
        "loss_mask": mask_T,
        "token_weight": torch.rand(num_tokens, generator=generator) * mask_T / max(1, int(mask_T.sum())),
        "length": length_S,
        "atom": torch.arange(num_segments),
        "temperature": torch.rand(num_segments, generator=generator) + 0.5,
    }
    return TokenBatch(columns=columns, dims=CORE_COLUMNS, num_atoms=num_segments)


def select(batch: TokenBatch, segments: Sequence[int]) -> TokenBatch:
    """A batch of these segments only, in this order."""
    rows = torch.split(batch["token"], batch["length"].tolist())
    starts = (batch["length"].cumsum(0) - batch["length"]).tolist()
    token_T = torch.cat([torch.arange(starts[s], starts[s] + len(rows[s])) for s in segments])
    index = {"T": token_T, "S": torch.tensor(segments)}
    columns = {name: column[index[batch.dims[name]]] for name, column in batch.columns.items()}
    columns["segment"] = torch.repeat_interleave(torch.arange(len(segments)), columns["length"])
    columns["atom"] = torch.arange(len(segments))
    return replace(batch, columns=columns, num_atoms=len(segments))


def objective(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    """Not linear in the log-probs, with an entropy bonus if there is entropy, and a metric."""
    assert outputs.logprob_T is not None
    values = outputs.logprob_T.square() - outputs.logprob_T
    if outputs.entropy_T is not None:
        values = values - 0.5 * outputs.entropy_T
    seen = Metric(name="tokens", sum=float(batch["loss_mask"].sum()), reduction="sum")
    return Loss(values=values, metrics=(seen,))


def infinite(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    """A loss whose gradient is not finite."""
    loss = objective(outputs, batch)
    return replace(loss, values=loss.values * float("inf"))


def of_topk(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    """Not linear in the log-probs of several tokens."""
    assert outputs.topk_logprob_TK is not None
    return Loss(values=outputs.topk_logprob_TK.square().sum(-1))


def of_divergence(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    """Not linear in the divergence."""
    assert outputs.divergence_T is not None
    return Loss(values=outputs.divergence_T.square())


def square_gap(logprob: Tensor, teacher: Tensor) -> Tensor:
    """A divergence of no name, as others may bring one."""
    return teacher.exp() * (logprob - teacher).square()


def plain_distributions(model: Any, batch: TokenBatch) -> Tensor:
    """Log-probs of every token in the place of each, each sequence alone, with gradient; 0 at first tokens, [T, V]."""
    parts = []
    for ids, temperature in zip(
        torch.split(batch["token"], batch["length"].tolist()), batch["temperature"], strict=True
    ):
        logp = (model(input_ids=ids[None], use_cache=False).logits[0].float() / temperature).log_softmax(-1)
        parts += [torch.zeros_like(logp[:1]), logp[:-1]]
    return torch.cat(parts)


def plain_outputs(model: Any, batch: TokenBatch) -> TokenOutputs:
    """Each sequence alone through the model, with gradient; 0 at first tokens."""
    logp_TV = plain_distributions(model, batch)
    entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
    return TokenOutputs(
        logprob_T=logp_TV.gather(1, batch["token"][:, None])[:, 0], entropy_T=entropy_T * (batch["position"] > 0)
    )


def tensors(strategy: Strategy) -> dict[str, Tensor]:
    """Copies of what ``weights`` yields, by name."""
    return {name: tensor.detach().cpu().clone() for bucket in strategy.weights() for name, tensor in bucket}


def value_of(metrics: Sequence[Metric], name: str) -> float:
    found = [metric for metric in metrics if metric.name == name]
    assert found, f"optimizer_step returned no metric {name!r}, only {sorted({m.name for m in metrics})}"
    return found[-1].value


def same(ours: Tensor | None, theirs: Tensor | None, what: str, tolerance: float = TOLERANCE) -> None:
    """Fail, saying what differs."""
    assert ours is not None, f"{what}: asked for and not returned"
    assert theirs is not None
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, msg=lambda text: f"{what}: {text}")


def same_weights(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], what: str, *, exact: bool = False, tolerance: float = TOLERANCE
) -> None:
    """Fail, naming the first weight that differs."""
    for name, tensor in ours.items():
        if exact:
            assert torch.equal(tensor, theirs[name]), f"{what}: {name} differs, and must be equal bit for bit"
        else:
            same(tensor, theirs[name], f"{what}: {name}", tolerance)
