"""What a strategy yields is compared with what it announced before any transport sees it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from areal_lit.contracts import Rank
from areal_lit.contracts.transport import WeightTransport
from areal_lit.types import TensorInfo, WeightSource
from areal_lit.weight_sync import as_announced
from areal_lit.worker import RoleWorker

WEIGHTS = [("a.weight", torch.ones(2, 3)), ("b.weight", torch.zeros(4, dtype=torch.bfloat16)), ("c", torch.tensor(1.0))]
MANIFEST = (
    TensorInfo(name="a.weight", shape=(2, 3), dtype="float32"),
    TensorInfo(name="b.weight", shape=(4,), dtype="bfloat16"),
    TensorInfo(name="c", shape=(), dtype="float32"),
)
SOURCE = WeightSource(version=7, receiver="a:B", params={}, tensors=MANIFEST)


def test_what_was_announced_passes_unchanged():
    buckets = [WEIGHTS[:1], WEIGHTS[1:]]
    assert list(as_announced(SOURCE, iter(buckets))) == buckets


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([("other", WEIGHTS[0][1]), *WEIGHTS[1:]], r"got other \(2, 3\) float32, announced a.weight \(2, 3\) float32"),
        ([("a.weight", torch.ones(3, 2)), *WEIGHTS[1:]], r"got a.weight \(3, 2\)"),
        ([*WEIGHTS[:1], ("b.weight", torch.zeros(4)), *WEIGHTS[2:]], r"got b.weight \(4,\) float32"),
        ([WEIGHTS[1], WEIGHTS[0], WEIGHTS[2]], "got b.weight .*announced a.weight"),
        ([*WEIGHTS, WEIGHTS[0]], "announced nothing more"),
        (WEIGHTS[:2], "1 tensors are missing, the first is c"),
    ],
)
def test_a_difference_is_refused(sent, message):
    with pytest.raises(ValueError, match=f"version 7 .*{message}"):
        list(as_announced(SOURCE, iter([sent[:1], sent[1:]])))


class Heedless(WeightTransport):
    """Looks at nothing, as a transport may."""

    receiver = "a:B"

    def plan(self, version, manifest, *, num_receivers, directory):
        return SOURCE

    def send(self, source, buckets, rank):
        for _ in buckets:
            pass


class Forgetful:
    """A strategy that yields less than it announced."""

    def setup(self, spec, **options):
        pass

    def weights(self):
        yield WEIGHTS[:2]


def test_a_rank_checks_for_every_transport():
    worker = RoleWorker(Rank())
    algorithm = SimpleNamespace(needs=frozenset(), objectives=dict)
    worker.setup("policy", Forgetful(), None, "lm", None, None, algorithm, callbacks=(), fingerprint={})
    with pytest.raises(ValueError, match="the first is c"):
        worker.send("policy", Heedless(), SOURCE)
