"""What a line of samples.jsonl holds: the `samples` logger writes these records, browsers and queries read them."""

from __future__ import annotations

import msgspec

from areal_lit.readable import prompt_text


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of each token that the model drew, in order.

    Args:
        ids: of the model's vocabulary.
        logprobs: behaviour log-probs; null where not finite, and of what no model drew.
        versions: runs of equal ones, ``[version, how many]``.
    """

    ids: list[int]
    logprobs: list[float | None]
    versions: list[tuple[int, int]]

    @property
    def version_of_each(self) -> list[int]:
        """The version of each token."""
        return [version for version, num in self.versions for _ in range(num)]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What lists, filters and orders need of a sample. Fields that a record lacks have their defaults."""

    step: int
    source: str = ""
    prompt_id: int = 0
    sample: int = 0
    reward: float | None = None
    versions: list[int] = msgspec.field(default_factory=list)
    stop_reason: str = ""
    num_tokens: int = 0
    num_generated: int = 0
    column: str = ""
    """Of its row, that the completion stands in; empty where a model wrote it."""

    @property
    def staleness(self) -> int | None:
        """Steps between the oldest weights that drew a token and those that were trained with it."""
        return self.step - 1 - self.versions[0] if self.versions else None


class Sample(Head, frozen=True, kw_only=True):
    """A trajectory that was trained on. Numbers that are not finite become null in the file."""

    prompt: str | list[dict[str, str]] = ""
    completion: str = ""
    unscored: str = ""
    parts: dict[str, float | None] = msgspec.field(default_factory=dict)
    turn_rewards: list[float | None] = msgspec.field(default_factory=list)
    step_scores: list[float | None] = msgspec.field(default_factory=list)
    tokens: Tokens | None = None

    @property
    def prompt_text(self) -> str:
        """The prompt as plain text; of chat messages each under its role."""
        return prompt_text(self.prompt)
