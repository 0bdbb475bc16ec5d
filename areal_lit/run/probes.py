"""Probes: which prompts a parity probe takes, and what the trainer's log-probs of its completions are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from areal_lit.batching import pack
from areal_lit.contracts import Source
from areal_lit.roles import RoleGroup
from areal_lit.text import TextCodec
from areal_lit.types import Example, FloatArray, Group, IntArray, Prompt, Trajectory

PROBED_ROWS = 64
"""Rows among which the prompts of the parity probe are looked for."""

logger = logging.getLogger(__name__)


def probe_prompts(codec: TextCodec, source: Source, *, num: int, longest: int) -> list[IntArray]:
    """Tokens of the first ``num`` prompts that fit; only the first rows are looked at."""
    prompts: list[IntArray] = []
    for index in range(min(len(source.examples), PROBED_ROWS)):
        if len(prompts) == num:
            break
        # tokenizers and templates raise whatever they like; the row's own rollout reports and counts it
        with suppress(Exception):
            token_ids = codec.encode_prompt(source.examples[index])
            if 0 < len(token_ids) <= longest:
                prompts.append(token_ids)
    if not prompts:
        logger.warning(
            "no parity probe: none of the first %d prompts has between 1 and %d tokens", PROBED_ROWS, longest
        )
    return prompts


def logprobs_of(policy: RoleGroup, probes: Sequence[tuple[IntArray, int, float]]) -> list[FloatArray]:
    """The trainer's log-probs of generated tokens, per (token ids, prompt length, temperature)."""
    groups = [_probe_group(index, *probe) for index, probe in enumerate(probes)]
    out = policy.forward(pack(groups), frozenset({"logprob"}))
    assert out.logprob_T is not None
    logprobs = out.logprob_T.numpy()
    ends = np.cumsum([len(token_ids) for token_ids, _, _ in probes])
    parts = np.split(logprobs, ends[:-1])
    return [part[num_prompt:] for part, (_, num_prompt, _) in zip(parts, probes, strict=True)]


def _probe_group(index: int, token_ids: IntArray, num_prompt: int, temperature: float) -> Group:
    prompt = Prompt(prompt_id=index, source="probe", row=index, epoch=0, example=Example(prompt=""))
    mask = np.arange(len(token_ids)) >= num_prompt
    trajectory = Trajectory(
        token_ids=token_ids,
        loss_mask=mask,
        logprobs=np.zeros(len(token_ids), dtype=np.float32),
        versions=np.where(mask, 0, -1),
        prompt=prompt,
        temperature=temperature,
        reward=0.0,
    )
    return Group(prompt=prompt, trajectories=(trajectory,))
