"""Two FSDP2 ranks under `local` broadcast their weights to an engine in a virtualenv that has only torch."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fsdp2_rank import loss_of, small_model
from gloo_transport import Gloo

from areal_lit.contracts import GroupSpec, ProcessSpec
from areal_lit.testing.transport import check_transport
from areal_lit_launchers.local import Local

HERE = str(Path(__file__).parent)
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def torch_only_python(tmp_path_factory):
    """The interpreter of a fresh virtualenv with torch and what pip brings along for it."""
    directory = tmp_path_factory.mktemp("torch-only")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=120)
    python = directory / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "torch>=2.9,<2.14"]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if installed.returncode:
        pytest.skip(f"torch cannot be installed into a fresh virtualenv here: {installed.stderr[-500:]}")
    return str(python)


@pytest.mark.slow
def test_gloo_conforms(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    check_transport(Gloo(timeout_s=20.0), tmp_path, num_receivers=1, short_s=3.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sharded_weights_arrive_in_another_virtualenv(tmp_path, monkeypatch, torch_only_python):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    deaths = queue.SimpleQueue()
    launcher = Local()
    launcher.setup(tmp_path, deaths.put)
    try:
        out = tmp_path / "received.pt"
        spec = ProcessSpec(
            name="engine-0", target="gloo_engine:serve", kwargs={"out": str(out)}, python=torch_only_python,
            env={"PYTHONPATH": HERE},
        )  # fmt: skip
        engine = launcher.start_process(spec)
        group = launcher.start_group(
            GroupSpec(name="policy", target="fsdp2_rank:ShardedRank", num_ranks=2, num_threads=1)
        )
        tokens = torch.randint(19, (10,), generator=torch.Generator().manual_seed(3))
        steps = group.call("step", 10, per_rank=[tokens[:4], tokens[4:]], timeout_s=TIMEOUT_S)
        assert [f.result() for f in steps] == [None, None]
        answer = sync(group, engine.address, Gloo(), tmp_path, version=1)
        assert answer == {"has_areal_lit": False, "has_safetensors": False, "version": 1}
        gathered = [f.result() for f in group.call("gathered", timeout_s=TIMEOUT_S)]
    finally:
        launcher.stop()
    assert deaths.empty()
    received = torch.load(out, weights_only=True)
    expected = stepped(tokens)
    assert received.keys() == expected.keys()
    for name, tensor in received.items():
        assert torch.equal(tensor, gathered[0][name]), name
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)


def sync(group, address, transport, directory, *, version):
    """Send and receive at once; what the engine answers."""
    manifest = group.call("manifest", timeout_s=TIMEOUT_S)[0].result()
    source = transport.plan(version, manifest, num_receivers=1, directory=str(directory))
    sending = group.call("send", transport, source, timeout_s=TIMEOUT_S)
    with connected(address) as client, client.makefile("rw") as stream:
        order = {"receiver": source.receiver, "params": dict(source.params), "version": version}
        stream.write(json.dumps(order) + "\n")
        stream.flush()
        answer = json.loads(stream.readline())
    for future in sending:
        future.result()
    transport.finish(source)
    return answer


def connected(address):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(TIMEOUT_S)
        try:
            client.connect(address)
            return client
        except (FileNotFoundError, ConnectionRefusedError):
            client.close()
            assert time.monotonic() < deadline, "the engine does not listen"
            time.sleep(0.05)


def stepped(tokens):
    """The same step in one process, on whole shares."""
    model = small_model()
    loss = (loss_of(model, tokens[:4]) + loss_of(model, tokens[4:])) / len(tokens)
    loss.backward()
    with torch.no_grad():
        return {name: p - 0.1 * p.grad for name, p in model.named_parameters()}
