"""Weight sync: order, deadlines, idempotence, and a probe that notices wrong weights.

The backend is a small one around a real tiny model, with faults to plant. The engine keeps the head's weight as a
packed copy, as engines do, and the keys and values of prompts, as a prefix cache does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from areal_lit.contracts import InferenceBackend, Rank
from areal_lit.models import load_causal_lm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import CORE_COLUMNS, TokenBatch
from areal_lit.types import Completion, Metric, TensorInfo
from areal_lit.weight_sync import MismatchAlarm, MismatchError, WeightSync, WeightSyncer, WeightSyncError
from areal_lit_transports.memory import Memory, MemoryReceiver

PROMPTS = [np.array([9, 12, 30, 8]), np.array([41, 7, 22])]


class TinyEngine(InferenceBackend):
    """Generates with a model of its own, token by token."""

    receivers = frozenset({"memory"})

    def __init__(self, model, fault=""):
        self.model = model
        self.fault = fault
        self.head = model.lm_head.weight.detach().clone()
        self.version = -1
        self.prefixes = {}
        self.calls = []
        self.urgent = []
        self.budgets = []
        self.receiver = MemoryReceiver()

    def processes(self, spec, *, seed, deterministic):
        return ()

    async def connect(self, processes):
        pass

    async def close(self):
        pass

    async def pause(self, mode):
        self.calls.append(f"pause {mode}")
        if self.fault == "never pauses":
            await asyncio.sleep(600)

    async def resume(self):
        self.calls.append("resume")

    async def update_weights(self, source):
        self.calls.append(f"update {source.version}")
        if self.fault == "never receives":
            await asyncio.sleep(600)
        received = await asyncio.to_thread(lambda: dict(self.receiver.receive(source.params, 0, 5.0)))
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in received.items():
                parameters[name].copy_(tensor)
            if self.fault == "corrupts one tensor":
                parameters["model.layers.1.mlp.down_proj.weight"][3:5] += 0.5
        if self.fault != "keeps the tied head":
            self.head = self.model.lm_head.weight.detach().clone()
        if self.fault != "keeps prefixes":
            self.prefixes.clear()
        self.version = source.version - (self.fault == "stamps the old version")

    async def generate(self, request):
        self.urgent.append(request.is_urgent)
        self.budgets.append(request.sampling.max_new_tokens)
        if self.fault == "never answers":
            await asyncio.sleep(600)
        if self.fault == "answers late":
            await asyncio.sleep(0.2)
        prompt = request.token_ids
        key = tuple(prompt)
        if key not in self.prefixes:
            with torch.no_grad():
                out = self.model.model(torch.tensor(prompt[:-1])[None], use_cache=True)
            self.prefixes[key] = [(layer.keys, layer.values) for layer in out.cache.layers]
        return self._continue(prompt, self.prefixes[key], request)

    def _continue(self, prompt, prefix, request):
        from transformers import DynamicCache

        cache = DynamicCache()
        for index, (keys, values) in enumerate(prefix):
            cache.update(keys, values, index)
        generator = torch.Generator().manual_seed(request.seed)
        token, tokens, logprobs = int(prompt[-1]), [], []
        for _ in range(request.sampling.max_new_tokens):
            with torch.no_grad():
                hidden = self.model.model(torch.tensor([[token]]), cache=cache, use_cache=True)
            scores = (hidden.last_hidden_state[0, -1] @ self.head.T).log_softmax(-1)
            token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(scores[token]))
        return Completion(
            token_ids=np.array(tokens),
            logprobs=np.array(logprobs, dtype=np.float32),
            versions=np.full(len(tokens), self.version),
            stop_reason="length",
        )


class Setting:
    """A trainer's model, an engine with its own, and the syncer between them."""

    def __init__(
        self, tmp_path, *, fault="", sender="", transport=None, num_receivers=1, max_new_tokens=64, **settings
    ):
        self.spec = tiny_spec(tmp_path)
        self.model = load_causal_lm(self.spec)
        self.engine = TinyEngine(load_causal_lm(self.spec), fault)
        self.transport = transport or Memory()
        self.sender = sender
        self.syncer = WeightSyncer(
            WeightSync(**{"timeout_s": 20.0, **settings}),
            transport=self.transport,
            backend=self.engine,
            loop_run=lambda coroutine, timeout_s, what: asyncio.run(deadline(coroutine, timeout_s, what)),
            send=self.send,
            manifest=self.manifest,
            forward=self.forward,
            sync_mode="interrupt",
            directory=str(tmp_path),
            dtype="float32",
            num_receivers=num_receivers,
        )
        self.syncer.set_probe_prompts(PROMPTS, max_new_tokens=max_new_tokens)

    def manifest(self):
        return tuple(TensorInfo.of(*named) for named in self.model.named_parameters())

    def send(self, source):
        future = Future()
        if self.sender == "hangs":
            return [future]
        try:
            buckets = [list(self.model.named_parameters())]
            if self.sender == "fails":
                raise FloatingPointError("no weights today")
            future.set_result(self.transport.send(source, iter(buckets), Rank()))
        except FloatingPointError as error:
            future.set_exception(error)
        return [future]

    def forward(self, sequences):
        out = []
        for token_ids, num_prompt, temperature in sequences:
            with torch.no_grad():
                logits = self.model(torch.tensor(token_ids)[None]).logits[0] / temperature
            scores = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(token_ids)[1:, None])[:, 0]
            out.append(scores[num_prompt - 1 :].numpy())
        return out

    def step(self):
        """What an optimizer step does to the weights."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))


async def deadline(coroutine, timeout_s, what):
    try:
        return await asyncio.wait_for(coroutine, timeout_s)
    except TimeoutError:
        raise TimeoutError(f"waited {timeout_s:g} s for {what}") from None


@pytest.mark.parametrize("timeout_s", [20.0, math.inf])
def test_a_sync_brings_every_weight(tmp_path, timeout_s):
    setting = Setting(tmp_path, timeout_s=timeout_s)
    setting.step()
    metrics = {metric.name: metric.value for metric in setting.syncer.sync(1)}
    assert setting.engine.calls == ["pause interrupt", "update 1", "resume"]
    for name, parameter in setting.model.named_parameters():
        assert torch.equal(parameter, dict(setting.engine.model.named_parameters())[name]), name
    assert metrics["sync/probe_difference"] < 1e-5
    assert metrics["sync/seconds"] >= metrics["sync/transfer_seconds"] > 0


def test_a_version_is_synced_once(tmp_path):
    setting = Setting(tmp_path)
    setting.syncer.sync(1)
    calls = list(setting.engine.calls)
    assert setting.syncer.sync(1) == []
    assert setting.engine.calls == calls


def test_probes_come_first_and_then_every_so_often(tmp_path):
    setting = Setting(tmp_path, probe_first=1, probe_every=3, probe_tokens=2)
    probed = [any("probe" in m.name for m in setting.syncer.sync(version)) for version in range(7)]
    assert probed == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("fault", ["corrupts one tensor", "keeps the tied head", "keeps prefixes"])
def test_the_probe_catches_wrong_weights(tmp_path, fault):
    setting = Setting(tmp_path, fault=fault, abort_above=1e9)
    setting.syncer.sync(0)
    setting.step()
    (difference,) = [m.value for m in setting.syncer.sync(1) if m.name == "sync/probe_difference"]
    assert difference > 1e-2
    setting = Setting(tmp_path, fault=fault, probe_first=0, probe_every=2)
    setting.engine.fault, fault = "", setting.engine.fault
    setting.syncer.sync(0)
    setting.step()
    setting.syncer.sync(1)
    setting.step()
    setting.engine.fault = fault
    with pytest.raises(MismatchError, match="the probe after the sync of version 2"):
        setting.syncer.sync(2)


def test_a_probe_generates_no_more_than_an_episode_may(tmp_path):
    setting = Setting(tmp_path, max_new_tokens=3, probe_tokens=16)
    setting.syncer.sync(0)
    assert setting.engine.budgets == [3] * len(PROMPTS)


def test_the_probe_refuses_an_old_version_stamp(tmp_path):
    setting = Setting(tmp_path, fault="stamps the old version")
    with pytest.raises(WeightSyncError, match=r"sync of version 3.*versions \[2\]"):
        setting.syncer.sync(3)


@pytest.mark.parametrize(
    ("faults", "stuck"),
    [
        ({"fault": "never pauses"}, "engine to pause"),
        ({"fault": "never receives"}, "still busy: the engine, receiving"),
        ({"sender": "hangs"}, "trainer rank 0, sending"),
    ],
)
def test_a_stuck_side_is_named_and_nothing_is_posted_again(tmp_path, faults, stuck):
    setting = Setting(tmp_path, timeout_s=1.0, **faults)
    with pytest.raises(WeightSyncError, match=stuck):
        setting.syncer.sync(1)
    calls = list(setting.engine.calls)
    assert "resume" not in calls
    with pytest.raises(WeightSyncError, match="sync of version 1 failed"):
        setting.syncer.sync(2)
    assert setting.engine.calls == calls


def test_a_probe_is_urgent_and_its_time_is_the_syncs(tmp_path):
    setting = Setting(tmp_path, fault="answers late")
    first = {metric.name: metric.value for metric in setting.syncer.sync(0)}
    second = {metric.name: metric.value for metric in setting.syncer.sync(1)}
    assert setting.engine.urgent == [True] * 6
    assert first["sync/probe_seconds"] >= 0.2
    assert second["sync/probe_seconds"] >= 0.4, "the sample before the sync holds training up too"
    for metrics in (first, second):
        parts = [metrics[f"sync/{part}_seconds"] for part in ("pause", "transfer", "probe")]
        assert metrics["sync/seconds"] == pytest.approx(sum(parts))
    unprobed = {metric.name for metric in setting.syncer.sync(2)}
    assert unprobed == {"sync/seconds", "sync/pause_seconds", "sync/transfer_seconds"}


def test_a_probe_without_an_answer_is_a_failed_sync(tmp_path):
    setting = Setting(tmp_path, timeout_s=1.0, fault="never answers")
    with pytest.raises(WeightSyncError, match=r"waiting for the parity probe of version 1: waited 1 s"):
        setting.syncer.sync(1)


@pytest.mark.parametrize(("num_processes", "num_receivers"), [(0, 1), (1, 1), (3, 3)])
def test_every_engine_is_a_receiver(tmp_path, num_processes, num_receivers):
    engine = Setting(tmp_path).engine
    assert engine.num_receivers([None] * num_processes) == num_receivers


def test_the_transport_learns_how_many_receive(tmp_path):
    planned = []

    class Recording(Memory):
        def plan(self, version, manifest, *, num_receivers, directory):
            planned.append(num_receivers)
            return super().plan(version, manifest, num_receivers=num_receivers, directory=directory)

    Setting(tmp_path, transport=Recording(), num_receivers=2).syncer.sync(1)
    assert planned == [2]


def test_a_failing_sender_is_the_error(tmp_path):
    setting = Setting(tmp_path, sender="fails")
    with pytest.raises(WeightSyncError, match=r"trainer rank 0, sending: no weights today"):
        setting.syncer.sync(1)


def batch_of(behaviour, proximal, version, mask):
    columns = {
        "token": torch.zeros(4, dtype=torch.long),
        "segment": torch.zeros(4, dtype=torch.long),
        "length": torch.tensor([4]),
        "atom": torch.tensor([0]),
        "loss_mask": torch.tensor(mask),
        "version": torch.tensor(version),
        "logprob": torch.tensor(behaviour),
        "proximal": torch.tensor(proximal),
    }
    return TokenBatch(columns=columns, dims=CORE_COLUMNS, num_atoms=1)


def test_the_alarm_looks_at_tokens_of_the_same_weights_only():
    batch = batch_of([9.0, -1.0, -2.0, 9.0], [0.0, -1.002, -2.002, 0.0], [-1, 3, 3, 2], [False, True, True, True])
    metrics = {m.name: m.value for m in MismatchAlarm(WeightSync(), dtype="float32").check(batch, 3)}
    assert metrics["train/logprob_mismatch"] == pytest.approx(0.002, rel=1e-3)
    assert metrics["train/logprob_mismatch_max"] == pytest.approx(0.002, rel=1e-3)
    assert MismatchAlarm(WeightSync(), dtype="float32").check(batch, 7) == []


@pytest.mark.parametrize(
    ("off", "dtype", "outcome"),
    [(1e-5, "float32", ""), (3e-3, "float32", "warn"), (0.05, "float32", "end"), (0.04, "bfloat16", ""),
     (0.1, "bfloat16", "warn"), (1.0, "bfloat16", "end"), (float("nan"), "float32", "end")],
)  # fmt: skip
def test_the_limits_follow_the_precision(caplog, off, dtype, outcome):
    batch = batch_of([-1.0] * 4, [-1.0 + off] * 4, [3] * 4, [True] * 4)
    alarm = MismatchAlarm(WeightSync(), dtype=dtype)
    with caplog.at_level(logging.WARNING):
        if outcome == "end":
            with pytest.raises(MismatchError, match="abort_above"):
                alarm.check(batch, 3)
        else:
            alarm.check(batch, 3)
    assert bool(caplog.records) == (outcome == "warn")


@pytest.mark.parametrize(
    "settings",
    [
        {"interval": 0},
        {"timeout_s": 0},
        {"timeout_s": math.nan},
        {"probe_tokens": 0},
        {"warn_above": 1.0, "abort_above": 0.5},
        {"abort_above": math.nan},
        {"warn_above": -1.0},
    ],
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=r"sync\.\w+ must be"):
        WeightSync(**settings)


def test_the_alarm_judges_what_ranks_compared():
    def metrics(mean):
        name = "train/logprob_mismatch"
        return [Metric(name=name, sum=mean * 4, count=4), Metric(name=f"{name}_max", sum=mean, reduction="max")]

    alarm = MismatchAlarm(WeightSync(), dtype="float32")
    alarm.check_metrics([], 3)
    alarm.check_metrics(metrics(1e-4), 3)
    with pytest.raises(MismatchError, match=r"0\.05 on average .* 4 tokens\) in the step trained on at version 3"):
        alarm.check_metrics(metrics(0.05), 3)
