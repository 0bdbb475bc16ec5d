"""Online: what stands between the loop and the engine when an algorithm learns from rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pluggy

from areal_lit.contracts import Process, Reward, Source
from areal_lit.models import load_config
from areal_lit.plugins import fingerprint
from areal_lit.prompts import PromptStream
from areal_lit.rewarding import Scorer
from areal_lit.roles import RoleGroup
from areal_lit.rollout import RolloutLoop
from areal_lit.rollout.limits import Limits
from areal_lit.run.directory import RunDirectory
from areal_lit.run.probes import logprobs_of, probe_prompts
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Group, Metric, ModelSpec, Prompt
from areal_lit.validation import components, sequence_limit
from areal_lit.weight_sync import MismatchAlarm, WeightSyncer

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

Sources = Mapping[str, Mapping[str, Source]]
"""Kind of source -> name -> source."""


class Online:
    """Rollout loop, reward pool and weight sync of a run, started and stopped together."""

    def __init__(
        self,
        trainer: Trainer,
        *,
        stream: PromptStream,
        sources: Mapping[str, Source],
        evaluation_sources: Mapping[str, Source],
        codec: TextCodec,
        policy: RoleGroup,
        hook: pluggy.HookRelay,
        directory: RunDirectory,
    ) -> None:
        assert trainer.inference is not None
        assert trainer.transport is not None
        assert trainer.workflow is not None
        self._trainer = trainer
        self._sources = sources
        self._codec = codec
        self._backend = trainer.inference
        scored = {"source": sources, "evaluation set": evaluation_sources}
        if trainer.algorithm.uses_rewards:
            require_rewards(trainer.reward, scored)
        rewards = rewards_by_key(trainer.reward, scored)
        self._scorer = Scorer(
            trainer.rewarding,
            rewards=rewards,
            in_process=trainer.launcher.in_process,
            log_dir=directory.logs,
            logs=trainer.logs,
            codec=codec,
            fingerprint=fingerprint([*components(trainer).values(), *rewards.values()]),
        )
        self._loop = RolloutLoop(
            trainer.rollout,
            stream=stream,
            sources=sources,
            backend=trainer.inference,
            codec=codec,
            workflow=trainer.workflow,
            score=self._scorer.score,
            reward=trainer.reward,
            filters=trainer.filters,
            hooks=hook,
            seed=trainer.seed,
            deterministic=trainer.deterministic,
            activity=trainer.activity,
        )
        self._syncer = WeightSyncer(
            trainer.sync,
            transport=trainer.transport,
            backend=trainer.inference,
            loop_run=lambda coroutine, timeout_s, what: self._loop.run(coroutine, timeout_s=timeout_s, what=what),
            send=lambda source: policy.send(trainer.transport, source),  # type: ignore[arg-type]
            manifest=policy.manifest,
            forward=partial(logprobs_of, policy),
            sync_mode=trainer.rollout.sync_mode,
            directory=str(trainer.launcher.scratch or directory.path),
            dtype=trainer.policy.model.dtype,
        )
        self._limits: Limits | None = None
        self._alarm = MismatchAlarm(trainer.sync, dtype=trainer.policy.model.dtype)

    def start(self, processes: Sequence[Process]) -> None:
        """Start the pool and the loop, and connect to the engine."""
        self._scorer.start()
        self._loop.start()
        with self._trainer.activity.during("starting the reward workers"):
            self._scorer.wait_ready()
        self._loop.run(self._backend.connect(processes), timeout_s=600, what="the engine to start")
        self._syncer.num_receivers = self._backend.num_receivers(processes)

    def stop(self) -> None:
        """End everything, in any state."""
        self._loop.stop()
        self._scorer.stop()

    def fail(self, error: BaseException) -> None:
        """Make every wait raise this error."""
        self._loop.fail(error)

    def interrupt(self) -> None:
        """End the wait for a batch; for signal handlers."""
        self._loop.interrupt()

    def next_batch(self, step: int) -> list[Group] | None:
        return self._loop.next_batch(step)

    def give_back(self) -> None:
        """What the last ``next_batch`` took was not trained on."""
        self._loop.give_back()

    def finished(self) -> list[Group]:
        """Groups that completed since the last call."""
        return self._loop.drain_finished()

    def hand_over(self, version: int) -> list[Metric]:
        """Give the engine the policy's weights, then let prompts in for them."""
        if self._limits is None:
            self._limits = limits_of(self._trainer)
            self._choose_probes()
        self._limits = replace(self._limits, newest_version=version)
        self._loop.limit(self._limits)
        metrics = self._syncer.sync(version)
        self._loop.set_version(version)
        return metrics

    def check(self, batch: TokenBatch, step: int) -> list[Metric]:
        """Alarm when behaviour and proximal log-probs of on-version tokens drift apart."""
        return self._alarm.check(batch, step) if "proximal" in batch else []

    def check_step(self, metrics: Sequence[Metric], step: int) -> None:
        """The same alarm where ranks compared their current log-probs, for want of proximal ones."""
        self._alarm.check_metrics(metrics, step)

    def evaluate(self, prompts: Sequence[Prompt], source: Source, *, timeout_s: float) -> list[Group] | None:
        """A group per prompt; None when the run is asked to stop meanwhile. Raises ValueError where nothing scores."""
        settings = self._trainer.evaluation
        require_rewards(self._trainer.reward, {"evaluation set": {prompts[0].source: source}})
        return self._loop.evaluate(
            [(prompt, source) for prompt in prompts],
            samples=settings.samples,
            sampling=settings.sampling or source.sampling or self._trainer.rollout.sampling,
            timeout_s=timeout_s,
        )

    def metrics(self) -> list[Metric]:
        return [*self._loop.metrics(), *self._scorer.metrics()]

    def state_dict(self) -> Mapping[str, Any]:
        return self._loop.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loop.load_state_dict(state)

    def _choose_probes(self) -> None:
        assert self._limits is not None
        if not self._sources:
            return
        trainer, source = self._trainer, next(iter(self._sources.values()))
        num_tokens = min(trainer.sync.probe_tokens, (source.sampling or trainer.rollout.sampling).max_new_tokens)
        assert self._limits.max_tokens is not None
        longest = self._limits.max_tokens - num_tokens
        prompts = probe_prompts(self._codec, source, num=trainer.sync.probe_prompts, longest=longest)
        self._syncer.set_probe_prompts(prompts, max_new_tokens=num_tokens)


def limits_of(trainer: Trainer) -> Limits:
    """What fits every model and a micro-batch of each, and the policy's vocabulary; models are at hand by now."""
    limit, rule = sequence_limit(trainer, _loaded_config)
    return Limits(
        max_tokens=limit, max_tokens_rule=rule, vocab_size=_loaded_config(trainer.policy.model).get("vocab_size")
    )


def _loaded_config(spec: ModelSpec) -> Mapping[str, Any]:
    # a model of another library has no Hugging Face configuration, and what it fits is not known here
    with suppress(OSError, ValueError):
        config: Mapping[str, Any] = load_config(spec).get_text_config().to_dict()
        return config
    return {}


def require_rewards(default: Reward | None, sources: Sources) -> None:
    """Raise ValueError for sources that neither bring a reward of their own nor have the trainer's."""
    missing = [
        f"{kind} {name}"
        for kind, named in sources.items()
        for name, source in named.items()
        if source.reward is None and default is None
    ]
    if missing:
        raise ValueError(f"nothing scores {', '.join(missing)}: name a reward, or give these sources their own")


def rewards_by_key(default: Reward | None, sources: Sources) -> dict[str, Reward]:
    """Every reward of a run once, the trainer's and those of sources, under a key that says what it scores."""
    rewards: dict[str, Reward] = {} if default is None else {"default": default}
    for kind, named in sources.items():
        for name, source in named.items():
            if source.reward is not None and not any(source.reward is known for known in rewards.values()):
                rewards[f"{kind} {name}"] = source.reward
    return rewards
