"""The transports pass the suite, and the suite fails transports with planted bugs."""

from __future__ import annotations

import contextlib

import pytest
import torch

from areal_lit.testing.transport import check_transport
from areal_lit_transports.file import File
from areal_lit_transports.memory import _SHELVES, Memory


def test_memory_conforms(tmp_path):
    check_transport(Memory(), tmp_path)


@pytest.mark.parametrize("keep", [True, False])
def test_file_conforms(tmp_path, keep):
    check_transport(File(directory=str(tmp_path), keep=keep), tmp_path)


class DropsLast(Memory):
    def plan(self, version, manifest, *, num_receivers, directory):
        source = super().plan(version, manifest, num_receivers=num_receivers, directory=directory)
        _SHELVES[source.params["key"]].num_tensors -= 1
        return source

    def send(self, source, buckets, rank):
        *kept, _ = [pair for bucket in buckets for pair in bucket]
        super().send(source, iter([kept]), rank)


class SendsTwiceTheSame(Memory):
    def send(self, source, buckets, rank):
        pairs = [(name, tensor.clone()) for bucket in buckets for name, tensor in bucket]
        if source.version == 3:
            self.first = pairs
        super().send(source, iter([self.first if source.version == 4 else pairs]), rank)


class KeepsAliases(Memory):
    def send(self, source, buckets, rank):
        shelf = _SHELVES[source.params["key"]]
        for bucket in buckets:
            shelf.items.extend(bucket)
        with shelf.changed:
            shelf.changed.notify_all()


class SwallowsFailures(Memory):
    def send(self, source, buckets, rank):
        with contextlib.suppress(InterruptedError):
            super().send(source, buckets, rank)


class FillsUp(Memory):
    def send(self, source, buckets, rank):
        shelf = _SHELVES[source.params["key"]]
        items = []
        try:
            for bucket in buckets:
                items += [(name, tensor.clone()) for name, tensor in bucket]
        finally:
            rest = source.tensors[len(items) :]
            items += [(info.name, torch.zeros(info.shape, dtype=getattr(torch, info.dtype))) for info in rest]
            with shelf.changed:
                shelf.items += items
                shelf.changed.notify_all()


class ReceiverOfTheCore(Memory):
    crosses_processes = True


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (DropsLast, "expected the tensors"),
        (SendsTwiceTheSame, "differs from what was sent"),
        (KeepsAliases, "differs from what was sent"),
        (SwallowsFailures, "must raise what iterating"),
        (FillsUp, "took that for a version"),
        (ReceiverOfTheCore, "own environment"),
    ],
)
def test_suite_fails_planted_bugs(tmp_path, mutant, rule):
    with pytest.raises(AssertionError, match=rule):
        check_transport(mutant(), tmp_path)
