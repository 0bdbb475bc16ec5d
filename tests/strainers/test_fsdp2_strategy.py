"""A sharded strategy through everything a real one goes through: ranks of `local`, RoleWorker, RoleGroup, WeightSyncer.

What it does on two ranks is compared with strategy `single` in this process; its weights are broadcast by gloo into a
process of another virtualenv, which has only torch.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import queue
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo_transport import Gloo
from safetensors.torch import load_file
from strainer_fsdp2 import FSDP2

from areal_lit.batching import pack, plan_shards, shard
from areal_lit.contracts import GroupSpec, InferenceBackend, ProcessSpec
from areal_lit.logs import Logs
from areal_lit.plugins import fingerprint
from areal_lit.roles import Role, RoleGroup
from areal_lit.testing.strategy import STRATEGY_CHECKS, Case
from areal_lit.testing.strategy_case import PlainAdam, PlainSGD
from areal_lit.testing.tiny import tiny_spec
from areal_lit.testing.toy import RaggedGroups
from areal_lit.testing.transport import check_transport
from areal_lit.types import merge_metrics
from areal_lit.weight_sync import WeightSync, WeightSyncer
from areal_lit_algorithms.grpo import GRPO
from areal_lit_launchers.inline import Inline
from areal_lit_launchers.local import Local
from areal_lit_single.strategy import Single

HERE = str(Path(__file__).parent)
TIMEOUT_S = 60.0
MAX_TOKENS = 22
BOTH = frozenset({"logprob", "entropy"})
ALGORITHM = GRPO(with_entropy=True)


@pytest.fixture(scope="module")
def _alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("check", STRATEGY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.usefixtures("_alone")
def test_fsdp2_conforms_on_one_rank(check, tmp_path):
    check(Case(FSDP2, tmp_path))


@pytest.mark.slow
def test_gloo_conforms(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    check_transport(Gloo(timeout_s=20.0), tmp_path, num_receivers=1, short_s=3.0)


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A launcher whose processes all live to the end of the test."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    deaths = queue.SimpleQueue()
    launcher = Local()
    launcher.setup(tmp_path / "logs", deaths.put, Logs())
    yield launcher
    launcher.stop()
    assert deaths.empty(), deaths.get()


@pytest.fixture
def inline(tmp_path):
    launcher = Inline()
    launcher.setup(tmp_path, lambda death: None, Logs())
    yield launcher
    launcher.stop()


def start(launcher, strategy, spec, optimizer, *, num_ranks=1, name="policy"):
    """The role's handle, once every rank has its model."""
    role = Role(model=spec, strategy=strategy, optimizer=optimizer, num_ranks=num_ranks)
    ranks = launcher.start_group(
        GroupSpec(name=name, target="areal_lit.worker:RoleWorker", num_ranks=num_ranks, num_threads=1)
    )
    group = RoleGroup("policy", role, ranks, watch=lambda: None, timeout_s=TIMEOUT_S)
    parts = [strategy, optimizer, ALGORITHM]
    group.wait(
        group.start(head="lm", num_steps=4, algorithm=ALGORITHM, callbacks=(), fingerprint=fingerprint(parts)), "setup"
    )
    return group


def ragged():
    """Three groups of unequal sequences: shards get unequal tokens, and one has fill."""
    batch = pack(RaggedGroups().draw(np.random.default_rng(1), num_groups=3), algorithm_columns=ALGORITHM.columns)
    shards = shard(batch, plan_shards(batch, num_shards=2, max_tokens=MAX_TOKENS, packing="ffd"))
    num_trained = [[int(m["loss_mask"].sum()) for m in microbatches] for microbatches in shards]
    assert sum(num_trained[0]) != sum(num_trained[1])
    assert [0 in shard_tokens for shard_tokens in num_trained].count(True) == 1
    return batch


def trained(group, batch):
    """One training step as the loop takes it; its metrics by name."""
    proximal = group.forward(batch, frozenset({"logprob"})).logprob_T
    prepared = ALGORITHM.prepare(batch.with_columns(proximal=proximal))
    metrics = group.collect(group.optimizer_step(ALGORITHM.weigh(prepared)), "optimizer_step")
    group.end_step()
    return {metric.name: metric.value for metric in merge_metrics(metrics).values()}


def exported(group, directory):
    save(group, directory.with_name(f"{directory.name}-state"), export=directory)
    return load_file(directory / "model.safetensors")


def save(group, directory, export=None):
    """Everything written, export included, before this returns."""
    for path in filter(None, (directory, export)):
        path.mkdir()
    group.wait(group.save(directory, export=export, in_background=True, timeout_s=TIMEOUT_S), "save")


@pytest.mark.slow
def test_two_ranks_do_what_one_does(local, inline, tmp_path):
    spec, batch = tiny_spec(tmp_path), ragged()
    optimizer = PlainSGD(lr=8.0, schedule="linear", warmup_steps=2)
    two = start(local, FSDP2(max_tokens_per_microbatch=MAX_TOKENS), spec, optimizer, num_ranks=2)
    one = start(inline, Single(), spec, optimizer)
    mask_T = batch["loss_mask"]
    for step in range(2):
        ours, theirs = two.forward(batch, BOTH), one.forward(batch, BOTH)
        for name in ("logprob_T", "entropy_T"):
            torch.testing.assert_close(getattr(ours, name)[mask_T], getattr(theirs, name)[mask_T], rtol=0, atol=1e-5)
        ours, theirs = trained(two, batch), trained(one, batch)
        assert ours["train/lr"] == theirs["train/lr"] == 4.0 * (step + 1)
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert two.manifest() == one.manifest()
    weights = exported(two, tmp_path / "two"), exported(one, tmp_path / "one")
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.slow
def test_one_rank_goes_on_where_two_ranks_were(local, tmp_path):
    spec, batch, saved = tiny_spec(tmp_path), ragged(), tmp_path / "saved"
    optimizer = PlainAdam(lr=1e-2, schedule="cosine")
    two = start(local, FSDP2(), spec, optimizer, num_ranks=2)
    one = start(local, FSDP2(), spec, optimizer, name="smaller")
    trained(two, batch)
    save(two, saved)
    one.load(saved)
    weights = exported(two, tmp_path / "two"), exported(one, tmp_path / "one")
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    ours, theirs = trained(two, batch), trained(one, batch)
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    ours, theirs = (group.forward(batch, BOTH).logprob_T for group in (two, one))
    torch.testing.assert_close(ours[batch["loss_mask"]], theirs[batch["loss_mask"]], rtol=0, atol=1e-4)


class ForeignEngine(InferenceBackend):
    """The controller's end of ``gloo_engine``: orders it to take weights, generates nothing."""

    receivers = frozenset({"*"})

    def __init__(self, python, out):
        self.python = python
        self.out = out
        self.calls = []

    def processes(self, spec, *, seed, deterministic):
        return [
            ProcessSpec(
                name="engine-0", target="gloo_engine:serve", kwargs={"out": str(self.out)}, python=self.python,
                env={"PYTHONPATH": HERE},
            )
        ]  # fmt: skip

    async def connect(self, processes):
        self.address = processes[0].address
        async with asyncio.timeout(TIMEOUT_S):
            while not Path(self.address).exists():  # noqa: ASYNC110, ASYNC240 - the engine's first sign of life
                await asyncio.sleep(0.05)

    async def update_weights(self, source):
        reader, writer = await asyncio.open_unix_connection(self.address)
        order = {"receiver": source.receiver, "params": dict(source.params), "version": source.version}
        writer.write(json.dumps(order).encode() + b"\n")
        self.calls.append(json.loads(await reader.readline()))
        writer.close()
        await writer.wait_closed()

    async def pause(self, mode):
        self.calls.append(mode)

    async def resume(self):
        self.calls.append("resume")

    async def generate(self, request):
        raise NotImplementedError

    async def close(self):
        pass


@pytest.fixture(scope="module")
def torch_only_python(tmp_path_factory):
    """The interpreter of a virtualenv with torch and what it requires, by links to what is installed here."""
    directory = tmp_path_factory.mktemp("torch-only")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=60)
    (packages,) = directory.glob("lib/python*/site-packages")
    for distribution in required("torch", {}).values():
        for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not name.endswith(".pth"):
                (packages / name).symlink_to(distribution.locate_file(name))
    return str(directory / "bin" / "python")


def required(name, found):
    """The distribution and everything it requires, by name."""
    distribution = importlib.metadata.distribution(name)
    if distribution.name not in found:
        found[distribution.name] = distribution
        for requirement in distribution.requires or ():
            if ";" not in requirement or "extra" not in requirement:
                required(re.match(r"[\w.-]+", requirement)[0], found)
    return found


@pytest.mark.slow
def test_sharded_weights_arrive_in_another_virtualenv(local, tmp_path, torch_only_python):
    spec, batch = tiny_spec(tmp_path), ragged()
    backend, transport = ForeignEngine(torch_only_python, tmp_path / "received.pt"), Gloo()
    engines = [local.start_process(process) for process in backend.processes(spec, seed=0, deterministic=False)]
    policy = start(local, FSDP2(max_tokens_per_microbatch=MAX_TOKENS), spec, PlainSGD(lr=0.5), num_ranks=2)
    asyncio.run(backend.connect(engines))
    syncer = WeightSyncer(
        WeightSync(timeout_s=TIMEOUT_S),
        transport=transport,
        backend=backend,
        loop_run=lambda coroutine, timeout_s, what: asyncio.run(asyncio.wait_for(coroutine, timeout_s)),
        send=lambda source: policy.send(transport, source),
        manifest=policy.manifest,
        forward=lambda sequences: [],
        sync_mode="interrupt",
        directory=str(tmp_path),
        num_receivers=len(engines),
        dtype=spec.dtype,
    )
    versions = []
    for version in (0, 1):
        syncer.sync(version)
        versions.append(torch.load(backend.out, weights_only=True))
        expected = exported(policy, tmp_path / f"version-{version}")
        assert versions[-1].keys() == expected.keys()
        for name, tensor in versions[-1].items():
            assert torch.equal(tensor, expected[name]), name
        trained(policy, batch)
    assert all(not torch.equal(versions[0][name], versions[1][name]) for name in versions[0])
    assert [call for call in backend.calls if isinstance(call, dict)] == [{"version": v, "has": []} for v in (0, 1)]
    assert backend.calls[0::3] == ["interrupt"] * 2
    assert backend.calls[2::3] == ["resume"] * 2
