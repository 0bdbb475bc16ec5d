"""The transport `file`: the file is safetensors, whole or absent, and gone afterwards."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from areal_lit.contracts.strategy import Rank
from areal_lit.testing.transport import manifest_of, weights_of
from areal_lit_transports.file import File
from areal_lit_transports.file_receiver import FileReceiver


def test_the_file_is_safetensors(tmp_path):
    transport = File(directory=str(tmp_path))
    weights = weights_of(1)
    source = transport.plan(1, manifest_of(weights), num_receivers=1, directory="unused")
    transport.send(source, iter([weights]), Rank())
    loaded = load_file(source.params["path"])
    assert loaded.keys() == dict(weights).keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights)


@given(st.lists(st.tuples(st.sampled_from(["float32", "bfloat16", "uint8", "int64"]), st.integers(0, 70)), max_size=8))
def test_ragged_weights_arrive(tmp_path_factory, parts):
    weights = [(f"t{i}", torch.arange(n).to(getattr(torch, dtype))) for i, (dtype, n) in enumerate(parts)]
    transport = File(directory=str(tmp_path_factory.mktemp("weights")), keep=False)
    source = transport.plan(0, manifest_of(weights), num_receivers=1, directory="unused")
    transport.send(source, iter([weights]), Rank())
    received = [(name, tensor.clone()) for name, tensor in FileReceiver().receive(source.params, 0, 5.0)]
    transport.finish(source)
    assert [name for name, _ in received] == [name for name, _ in weights]
    assert all(torch.equal(got, sent) for (_, got), (_, sent) in zip(received, weights, strict=True))


def test_a_failed_send_shows_no_file(tmp_path):
    transport = File(directory=str(tmp_path))
    weights = weights_of(1)
    source = transport.plan(1, manifest_of(weights), num_receivers=1, directory="unused")

    def breaks():
        yield weights[:2]
        raise FloatingPointError("the strategy failed")

    with pytest.raises(FloatingPointError):
        transport.send(source, breaks(), Rank())
    assert not os.path.exists(source.params["path"])
    with pytest.raises(TimeoutError):
        list(FileReceiver().receive(source.params, 0, 0.05))


def test_the_pages_are_used_again_and_freed_at_the_end(tmp_path):
    transport = File(directory=str(tmp_path))
    inodes = set()
    for version in range(3):
        source = transport.plan(version, manifest_of(weights_of(1)), num_receivers=1, directory="unused")
        transport.send(source, iter([weights_of(1)]), Rank())
        inodes.add(os.stat(source.params["path"]).st_ino)
        transport.finish(source)
        assert not os.path.exists(source.params["path"])
    assert len(inodes) == 1
    del transport
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_killed_run_is_not_taken_for_this_ones(tmp_path):
    (tmp_path / "weights-1.safetensors").write_bytes(b"of another run")
    source = File().plan(1, manifest_of(weights_of(1)), num_receivers=1, directory=str(tmp_path))
    with pytest.raises(TimeoutError):
        list(FileReceiver().receive(source.params, 0, 0.05))


def test_other_ranks_take_part_and_write_nothing(tmp_path):
    transport = File(directory=str(tmp_path))
    source = transport.plan(1, manifest_of(weights_of(1)), num_receivers=1, directory="unused")
    buckets = iter([weights_of(1)])
    transport.send(source, buckets, Rank(rank=1, num_ranks=2))
    assert next(buckets, None) is None
    assert not os.path.exists(source.params["path"])
    assert not os.path.exists(source.params["spare"])


def test_dtypes_without_a_name_are_refused(tmp_path):
    weights = [("c", torch.zeros(2, dtype=torch.complex64))]
    with pytest.raises(ValueError, match="complex64"):
        File(directory=str(tmp_path)).plan(0, manifest_of(weights), num_receivers=1, directory="unused")
