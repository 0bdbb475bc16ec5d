"""Rollout: the settings of rollouts, and the default answer to a failed episode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

from areal_lit.hookspecs import hookimpl
from areal_lit.rollout.limits import PromptTooLong
from areal_lit.rollout.warmup import Warmup
from areal_lit.sizes import MAX_EPISODES
from areal_lit.types import Prompt, Sampling


@final
@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How many prompts and samples a step takes, how far they may run ahead, and what happens when they fail.

    Args:
        groups_per_step: prompts whose groups one training step consumes.
        groups_warmup: from fewer groups per step, over the first steps.
        length_warmup: from a smaller ``max_new_tokens``, over the first versions of the weights: until it is over, no
            training episode is given more, whatever its source says. Evaluations always have their full length.
        samples_per_group: episodes per prompt.
        sampling: how tokens are drawn; a data source may bring its own.
        max_staleness: a step trains on no token older than this many steps. 0 is synchronous.
        max_concurrent: groups in flight at once; null derives (max_staleness + 1) * groups_per_step.
        sync_mode: new weights ``interrupt`` running episodes, which go on under the new ones, or ``drain`` them first.
        episode_timeout_s: from an episode's start to its end, reward excluded; then it has failed.
        max_attempts: how often an episode is tried before it is dropped.
        failure_budget: share of recent episodes that may fail for good before the run ends with an error.
        long_prompts: ``drop`` prompts that with ``max_new_tokens`` are longer than the model takes, and count them, or
            ``raise``: end the run.
        partial_groups: ``drop`` groups of which samples failed or could not be scored, or ``train`` on the rest.
        stale_groups: ``drop`` complete groups that grew too old (their prompt is rolled out again) or ``keep`` them.
        max_rejected_groups: so many groups rejected in a row end the run with an error that names the reasons; null
            derives 16 * groups_per_step, at least 64.
        wait_timeout_s: a step whose groups take longer than this ends the run.
        when_exhausted: when all examples were used, go on with the ``next_epoch`` or ``end`` the run.
        num_epochs: passes over the data; null is one with ``end`` and endless with ``next_epoch``.
    """

    groups_per_step: int
    samples_per_group: int
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    max_staleness: int = 1
    max_concurrent: int | None = None
    sync_mode: Literal["interrupt", "drain"] = "interrupt"
    episode_timeout_s: float = 600.0
    max_attempts: int = 3
    failure_budget: float = 0.1
    long_prompts: Literal["drop", "raise"] = "drop"
    partial_groups: Literal["drop", "train"] = "drop"
    stale_groups: Literal["drop", "keep"] = "drop"
    max_rejected_groups: int | None = None
    wait_timeout_s: float = 1800.0
    when_exhausted: Literal["next_epoch", "end"] = "next_epoch"
    num_epochs: int | None = None
    groups_warmup: Warmup | None = None
    length_warmup: Warmup | None = None

    def __post_init__(self) -> None:
        for name, ok, rule in (
            ("groups_per_step", self.groups_per_step >= 1, ">= 1"),
            ("samples_per_group", self.samples_per_group >= 1, ">= 1"),
            ("max_staleness", self.max_staleness >= 0, ">= 0"),
            ("max_concurrent", self.max_concurrent is None or self.max_concurrent >= 1, ">= 1 or null (derived)"),
            ("episode_timeout_s", self.episode_timeout_s > 0, "> 0"),
            ("max_attempts", self.max_attempts >= 1, ">= 1"),
            ("failure_budget", 0 <= self.failure_budget <= 1, "a share in [0, 1]"),
            (
                "max_rejected_groups",
                self.max_rejected_groups is None or self.max_rejected_groups >= 1,
                ">= 1 or null (derived)",
            ),
            ("wait_timeout_s", self.wait_timeout_s > 0, "> 0"),
            ("num_epochs", self.num_epochs is None or self.num_epochs >= 1, ">= 1 or null"),
            ("sync_mode", self.sync_mode in ("interrupt", "drain"), "interrupt or drain"),
            ("long_prompts", self.long_prompts in ("drop", "raise"), "drop or raise"),
            ("partial_groups", self.partial_groups in ("drop", "train"), "drop or train"),
            ("stale_groups", self.stale_groups in ("drop", "keep"), "drop or keep"),
            ("when_exhausted", self.when_exhausted in ("next_epoch", "end"), "next_epoch or end"),
        ):
            if not ok:
                raise ValueError(f"rollout.{name} must be {rule}, got {getattr(self, name)}")
        self._check_size()
        for name, warmup, full_name, full in (
            ("groups_warmup", self.groups_warmup, "groups_per_step", self.groups_per_step),
            ("length_warmup", self.length_warmup, "sampling.max_new_tokens", self.sampling.max_new_tokens),
        ):
            if warmup is not None and warmup.start > full:
                raise ValueError(f"rollout.{name}.start must be at most {full_name} {full}, got {warmup.start}")

    def _check_size(self) -> None:
        """Raise ValueError for more episodes at once than any machine holds."""
        ahead = (self.max_staleness + 1) * self.groups_per_step
        for groups, cause, way_out in (
            (ahead, "(max_staleness + 1) * groups_per_step", "lower one of them"),
            (self.max_concurrent or 0, "max_concurrent", "lower it"),
        ):
            if groups * self.samples_per_group > MAX_EPISODES:
                raise ValueError(
                    f"rollout.{cause} = {groups} groups of samples_per_group {self.samples_per_group} must be at most "
                    f"{MAX_EPISODES} episodes, more than any machine holds at once; {way_out} or samples_per_group"
                )

    def groups_at(self, step: int) -> int:
        """Groups that a step consumes."""
        return self.groups_per_step if self.groups_warmup is None else self.groups_warmup.at(step, self.groups_per_step)

    def groups_before(self, step: int) -> int:
        """Groups that all steps before this one consume together."""
        if self.groups_warmup is None:
            return step * self.groups_per_step
        return self.groups_warmup.total(step, self.groups_per_step)

    def sampling_at(self, version: int, sampling: Sampling) -> Sampling:
        """How tokens are drawn in an episode that begins under a version of the weights.

        Args:
            sampling: what it is after the warm-up.
        """
        if self.length_warmup is None or version >= self.length_warmup.steps:
            return sampling
        longest = self.length_warmup.at(version, self.sampling.max_new_tokens)
        return replace(sampling, max_new_tokens=min(longest, sampling.max_new_tokens))

    @property
    def concurrency(self) -> int:
        """Groups in flight at once."""
        return self.max_concurrent or (self.max_staleness + 1) * self.groups_per_step

    @property
    def rejection_limit(self) -> int:
        """Groups rejected in a row that end the run."""
        return self.max_rejected_groups or max(64, 16 * self.groups_per_step)

    @property
    def epochs(self) -> int | None:
        """Passes over the data, for the prompt stream; None is endless."""
        if self.num_epochs is None and self.when_exhausted == "end":
            return 1
        return self.num_epochs


class RolloutDefaults:
    """The core's own answer to ``rollout_error``, asked last.

    Args:
        settings: whose ``max_attempts`` counts.
    """

    def __init__(self, settings: Rollout) -> None:
        self.settings = settings

    @hookimpl(trylast=True)
    def rollout_error(self, prompt: Prompt, error: BaseException, attempt: int) -> Literal["retry", "drop", "raise"]:
        """Retry up to ``max_attempts``, then drop; the loop itself watches the failure budget.

        Prompts that are too long stay so: they are dropped, or end the run, as ``long_prompts`` says.
        """
        if isinstance(error, PromptTooLong):
            return self.settings.long_prompts
        return "retry" if attempt < self.settings.max_attempts else "drop"
