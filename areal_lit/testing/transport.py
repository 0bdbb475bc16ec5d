"""The conformance suite of weight transports.

def test_my_transport(tmp_path):
    check_transport(MyTransport(), tmp_path)
"""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_lit.contracts.strategy import Rank
from areal_lit.contracts.transport import Receiver, WeightTransport
from areal_lit.types import TensorInfo, WeightSource

Named = list[tuple[str, Tensor]]
TIMEOUT_S = 60.0
LAST_VERSION = 7

RECEIVE_ELSEWHERE = """
import importlib, json, sys, torch
module, name, params, index, timeout_s, out = json.load(sys.stdin)
receiver = getattr(importlib.import_module(module), name)()
torch.save([(n, t.clone()) for n, t in receiver.receive(params, index, timeout_s)], out)
"""


def weights_of(version: int) -> Named:
    """Ragged weights: two dtypes, a scalar, an empty one, one that is not contiguous, one past a page."""
    generator = torch.Generator().manual_seed(version)
    return [
        ("odd.weight", torch.randn(3, 5, generator=generator).to(torch.bfloat16)),
        ("head.weight", torch.randn(129, 33, generator=generator)),
        ("scale", torch.randn((), generator=generator)),
        ("empty", torch.zeros(0, 4)),
        ("turned.weight", torch.randn(17, 9, generator=generator).t()),
        ("index", torch.arange(version, version + 5)),
    ]


def manifest_of(weights: Named) -> tuple[TensorInfo, ...]:
    """What a strategy would announce."""
    return tuple(TensorInfo.of(*named) for named in weights)


def check_transport(
    transport: WeightTransport, directory: Path, *, num_receivers: int = 2, short_s: float = 0.3
) -> None:
    """Raises AssertionError for the first rule of the contract that the transport breaks.

    Args:
        num_receivers: in this process; where the transport crosses processes there is one more in another.
        short_s: how long receivers wait for senders that are to fail; enough for both sides to meet.
    """
    pickle.loads(pickle.dumps(transport))
    module, _, name = transport.receiver.partition(":")
    if transport.crosses_processes:
        _check_imports(module)
    receivers: list[Receiver] = [getattr(import_module(module), name)() for _ in range(num_receivers)]
    for version in (3, 4, LAST_VERSION):
        _check_version(transport, receivers, version, directory)
    _check_failing_sender(transport, receivers[0], directory, short_s)
    _check_timeout(transport, receivers[0], directory)


def _check_version(transport: WeightTransport, receivers: Sequence[Receiver], version: int, directory: Path) -> None:
    elsewhere = 1 if transport.crosses_processes and version == LAST_VERSION else 0
    weights = weights_of(version)
    source = transport.plan(
        version, manifest_of(weights), num_receivers=len(receivers) + elsewhere, directory=str(directory)
    )
    assert source.version == version, f"the source is of version {version}, got {source.version}"
    assert source.tensors == manifest_of(weights), "the source carries the manifest"
    params = json.loads(json.dumps(dict(source.params)))
    out = directory / f"received-{version}.pt"
    with ThreadPoolExecutor(len(receivers) + 2) as pool:
        sending = pool.submit(send, transport, source, weights)
        receiving = [pool.submit(take, receiver, params, index) for index, receiver in enumerate(receivers)]
        remote = [pool.submit(take_elsewhere, source, params, len(receivers), out)] if elsewhere else []
        sending.result(timeout=TIMEOUT_S)
        got = [future.result(timeout=TIMEOUT_S) for future in receiving + remote]
    transport.finish(source)
    transport.finish(source)
    for index, received in enumerate(got):
        _check_equal(received, weights_of(version), f"receiver {index} of version {version}")


def _check_equal(received: Named, expected: Named, where: str) -> None:
    names, wanted = [name for name, _ in received], [name for name, _ in expected]
    assert names == wanted, f"{where}: expected the tensors {wanted} in this order, got {names}"
    for (name, got), (_, tensor) in zip(received, expected, strict=True):
        assert got.dtype == tensor.dtype, f"{where}: {name} is {tensor.dtype}, got {got.dtype}"
        assert got.shape == tensor.shape, f"{where}: {name} has shape {tuple(tensor.shape)}, got {tuple(got.shape)}"
        assert torch.equal(got, tensor), f"{where}: {name} differs from what was sent"


def _check_failing_sender(transport: WeightTransport, receiver: Receiver, directory: Path, short_s: float) -> None:
    weights = weights_of(8)
    for num_whole in (0, 1):
        source = transport.plan(8, manifest_of(weights), num_receivers=1, directory=str(directory))
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(take, receiver, dict(source.params), 0, short_s)
            try:
                transport.send(source, _failing(weights, num_whole), Rank())
            except InterruptedError:
                is_raised = True
            else:
                is_raised = False
            taken = None if receiving.exception() else receiving.result()
        transport.finish(source)
        assert is_raised, "send() must raise what iterating the buckets raised"
        assert taken is None, (
            f"the sender failed after {num_whole} of 2 buckets, but a receiver took that for a version"
        )


def _failing(weights: Named, num_whole: int) -> Iterator[Named]:
    yield from [weights[:2]][:num_whole]
    raise InterruptedError("the strategy failed")


def _check_timeout(transport: WeightTransport, receiver: Receiver, directory: Path) -> None:
    source = transport.plan(9, manifest_of(weights_of(9)), num_receivers=1, directory=str(directory))
    start = time.monotonic()
    try:
        list(receiver.receive(source.params, 0, 0.2))
    except TimeoutError:
        pass
    else:
        raise AssertionError("receive() must raise TimeoutError when nothing is sent")
    finally:
        transport.finish(source)
    assert time.monotonic() - start < 10.0, "receive() must keep its timeout_s"


def _check_imports(module: str) -> None:
    """The receiving side is one file that imports only the standard library and torch."""
    spec = find_spec(module)
    assert spec is not None, f"the receiver's module {module} cannot be found"
    imported: set[str] = set()
    for node in ast.walk(ast.parse(Path(str(spec.origin)).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or ".").partition(".")[0] if not node.level else ".")
    foreign = imported - set(sys.stdlib_module_names) - {"torch"}
    assert not foreign, f"{module} must load in an engine's own environment, but imports {sorted(foreign)}"


def send(transport: WeightTransport, source: WeightSource, weights: Named) -> None:
    """Send in two buckets, then overwrite what was sent, as the next optimizer step does."""
    transport.send(source, iter([weights[:2], weights[2:]]), Rank())
    for _, tensor in weights:
        tensor.zero_()


def take(receiver: Receiver, params: dict[str, Any], index: int, timeout_s: float = TIMEOUT_S) -> Named:
    """What a receiver of this process gets."""
    return [(name, tensor.clone()) for name, tensor in receiver.receive(params, index, timeout_s)]


def take_elsewhere(source: WeightSource, params: dict[str, Any], index: int, out: Path) -> Named:
    """What a receiver of another process gets."""
    module, _, name = source.receiver.partition(":")
    orders = json.dumps([module, name, params, index, TIMEOUT_S, str(out)])
    subprocess.run([sys.executable, "-c", RECEIVE_ELSEWHERE], input=orders, text=True, check=True, timeout=TIMEOUT_S)
    received: Named = torch.load(out, weights_only=True)
    return received
