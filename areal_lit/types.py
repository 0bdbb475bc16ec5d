"""What travels between prompts, engine, rewards and training: small frozen records.

Shapes: n tokens of one sequence. Arrays are numpy; nothing here imports torch. The packed
training batch, which does hold torch tensors, is in ``token_batch.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float32]
    BoolArray = NDArray[np.bool_]
else:  # they stand in annotations only, and numpy's import is a third of the command's
    IntArray = FloatArray = BoolArray = Any

StopReason = Literal["stop", "length", "interrupted"]
"""Why generation ended: an end token or stop string, the token budget, or a pause for new weights."""

Reduction = Literal["mean", "sum", "max", "min"]

LOWEST_TEMPERATURE = 0.01
"""Below it logits divided by the temperature lose their precision, then overflow; 0 is greedy and divides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row of data: what the model is asked, and the fields that a reward may look at.

    Args:
        prompt: plain text, or chat messages (``{"role": ..., "content": ...}``).
        fields: everything else of the row, for rewards (``answer``) and offline algorithms
            (``completion``, ``chosen``, ``rejected``).
    """

    prompt: str | tuple[Mapping[str, Any], ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """An example on its way through a run, with the identity that resume and ordering rely on.

    Args:
        prompt_id: ordinal in the run's stream of prompts; never reused within a run.
        source: the name of the data source it was drawn from.
        row: index of the example in that source.
        epoch: how many times the source had been exhausted before.
    """

    prompt_id: int
    source: str
    row: int
    epoch: int
    example: Example

    @property
    def fields(self) -> Mapping[str, Any]:
        """The example's fields, for rewards: ``trajectory.prompt.fields["answer"]``."""
        return self.example.fields


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. The defaults sample the model's own distribution.

    Not slotted: jsonargparse reads a default instance through ``vars``.

    Args:
        max_new_tokens: budget of one episode's generation.
        temperature: divides the logits, at least 0.01; 0 is greedy (evaluation only).
        top_p: nucleus mass in (0, 1]; 1 is off.
        top_k: keep the k likeliest tokens; 0 is off.
        stop: strings that end generation (kept in the tokens, the stop reason is ``stop``).
        stop_token_ids: tokens that end generation besides the model's end tokens.
        ignore_eos: generate up to the budget whatever is drawn (benchmarks).
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, ok, rule in (
            ("max_new_tokens", self.max_new_tokens >= 1, ">= 1"),
            (
                "temperature",
                self.temperature == 0 or LOWEST_TEMPERATURE <= self.temperature < math.inf,
                f"0 (greedy), or finite and >= {LOWEST_TEMPERATURE:g}",
            ),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, ">= 0 (0 is off)"),
        ):
            if not ok:
                raise ValueError(f"sampling.{name} must be {rule}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One sequence to be continued by an inference backend.

    Args:
        request_id: unique within the run.
        token_ids: prompt and whatever was generated already, [n].
        sampling: ``max_new_tokens`` counts tokens beyond ``token_ids``.
        seed: of this request; equal seeds and weights give equal tokens on one engine.
        prefix_group: requests with the same value share their prompt; the engine may compute it once.
        is_urgent: training waits for it: it starts ahead of all that waits, and soon also when the engine is full.
    """

    request_id: str
    token_ids: IntArray
    sampling: Sampling
    seed: int
    prefix_group: str = ""
    is_urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine drew after a request's tokens.

    Args:
        token_ids: new tokens, the stop token included, [n].
        logprobs: behaviour log-probabilities in the distribution the backend declares, [n].
        versions: of the weights each token was drawn with, [n].
    """

    token_ids: IntArray
    logprobs: FloatArray
    versions: IntArray
    stop_reason: StopReason


LARGEST_REWARD = 1e18
"""Training is done in float32, which holds the square of this, as variances need, and nothing much larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScore:
    """What one step of a completion earned: a line, a sentence, a call.

    Args:
        last_token: index of the step's last token in its trajectory; the policy must have chosen it.
    """

    last_token: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One token sequence to train on or to score. Index t always speaks of token t itself.

    Args:
        token_ids: prompt, completion(s) and tool output in order, [n].
        loss_mask: True on tokens the policy chose, [n].
        logprobs: behaviour log-probs, 0 where ``loss_mask`` is False, [n].
        versions: weights each token was drawn with, -1 where not generated, [n].
        text: the decoded completion, for rewards and people.
        stop_reason: of the last generation.
        temperature: the tokens were sampled with.
        reward: None until scored. ``unscored`` says why a reward could not be had.
        reward_parts: the components a composite reward reports.
        sample: index within its group.
        turn_ids: turn of each token, -1 outside turns, [n]; None for a single turn. In all trajectories of an episode
            equal ids are the same turn.
        turn_rewards: reward of each turn in the order of their ids, beside ``reward``, when a workflow has them; as
            many as there are turns, each of which then needs a generated token.
        parent_turn: where a conversation branches, the turn of an earlier trajectory of the episode that this one goes
            on from, with turn ids of its own; -1: it begins with the prompt.
        step_scores: of the steps within turns, beside ``reward`` and ``turn_rewards``, when a reward has them; those of
            one token are summed.
        atom: trajectories of one group with equal values >= 0 are never split (pairs); -1: on its own.
        columns: further per-token [n] or per-sequence (scalar) values for columns an algorithm declares.
        metrics: numbers the workflow reports.
        routed_experts, images, adapter, role, rollout_id: empty where unused.
    """

    token_ids: IntArray
    loss_mask: BoolArray
    logprobs: FloatArray
    versions: IntArray
    prompt: Prompt
    text: str = ""
    stop_reason: StopReason = "stop"
    temperature: float = 1.0
    reward: float | None = None
    unscored: str = ""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    sample: int = 0
    turn_ids: IntArray | None = None
    turn_rewards: tuple[float, ...] = ()
    parent_turn: int = -1
    step_scores: tuple[StepScore, ...] = ()
    atom: int = -1
    columns: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    rollout_id: str = ""
    adapter: str = ""
    role: str = "policy"
    images: tuple[Any, ...] = ()
    routed_experts: Any = None

    @property
    def num_generated(self) -> int:
        """How many tokens the policy chose."""
        return int(self.loss_mask.sum())

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights any of its tokens came from; None if nothing was generated."""
        generated = self.versions[self.versions >= 0]
        return int(generated.min()) if generated.size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All trajectories of one prompt, complete and scored.

    ``group_id`` is the prompt's id: identity travels with the data and is never inferred from position.

    Args:
        version: of the weights that the engine held when the group was complete; None outside rollouts.
    """

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    version: int | None = None

    @property
    def group_id(self) -> int:
        return self.prompt.prompt_id

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the scored members, in sample order."""
        return tuple(t.reward for t in self.trajectories if t.reward is not None)

    @property
    def oldest_version(self) -> int | None:
        versions = [v for t in self.trajectories if (v := t.oldest_version) is not None]
        return min(versions) if versions else None

    @property
    def age(self) -> int | None:
        """Versions between its oldest token and its completion; None if nothing was generated, or outside rollouts."""
        oldest = self.oldest_version
        return None if self.version is None or oldest is None else self.version - oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A reward with its parts and numbers worth logging, and what single steps of the completion earned."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[StepScore, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """No reward could be computed; not zero. Retried, dropped or raised as the recipe says."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that merges exactly over micro-batches, ranks and sources.

    ``mean`` is sum / count; ``sum`` adds; ``max`` and ``min`` keep the extreme in ``sum``.
    """

    name: str
    sum: float
    count: float = 1.0
    reduction: Reduction = "mean"

    @property
    def value(self) -> float:
        """The reduced number; NaN for a mean or an extreme of nothing."""
        if self.reduction == "sum":
            return self.sum
        if not self.count:
            return float("nan")
        return self.sum / self.count if self.reduction == "mean" else self.sum

    def merge(self, other: Metric) -> Metric:
        """The metric over both parts. Raises ValueError when names or reductions differ."""
        if (self.name, self.reduction) != (other.name, other.reduction):
            raise ValueError(
                f"metrics merge only with their own kind, got {self.name} ({self.reduction}) "
                f"and {other.name} ({other.reduction}); declare one reduction per name"
            )
        if self.reduction in ("mean", "sum"):
            total = self.sum + other.sum
        elif self.reduction == "max":
            total = max(self.sum, other.sum)
        else:
            total = min(self.sum, other.sum)
        return Metric(name=self.name, sum=total, count=self.count + other.count, reduction=self.reduction)


def merge_metrics(metrics: list[Metric]) -> dict[str, Metric]:
    """Metrics of equal name merged into one, in order of first appearance."""
    merged: dict[str, Metric] = {}
    for metric in metrics:
        merged[metric.name] = merged[metric.name].merge(metric) if metric.name in merged else metric
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Which weights and tokenizer a role starts from.

    Args:
        path: a directory, a ``.gguf`` file, a hub id, or ``package:NAME/FILE`` for files shipped in an
            installed package (``package:areal_lit_recipes/quickstart_model``).
        config: a bare Hugging Face configuration (``{"model_type": "qwen3", "hidden_size": 64, ...}``): weights
            are drawn at random with ``init_seed``. ``path`` then only names the tokenizer.
        dtype: of the served and computed weights, ``float32`` or ``bfloat16``.
        init_seed: for random weights and fresh value or score heads.
        trust_remote_code: run Python code that the checkpoint brings; never a default.
    """

    path: str
    config: Mapping[str, Any] | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    init_seed: int = 0
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"model.dtype must be float32 or bfloat16, got {self.dtype!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Name (Hugging Face spelling), shape and dtype name of one weight to be sent."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorInfo:
        """What is announced of a tensor: ``float32``, not ``torch.float32``."""
        return cls(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where an engine finds the weights of one version; plain values, so it travels as JSON.

    Args:
        version: the training step whose weights these are.
        receiver: ``pkg.module:Class`` of the receiving side.
        params: what that class needs (a path, an address and a rank offset, ...).
    """

    version: int
    receiver: str
    params: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...] = ()
