"""The launcher `inline`: what it refuses, what it copies, and how its threads end; `__main__` works there."""

from __future__ import annotations

import os
import queue
import threading

import pytest
import torch

from areal_lit import recipes
from areal_lit.contracts.launcher import GroupSpec, ProcessSpec
from areal_lit.logs import Logs
from areal_lit.testing.launcher_case import Marked
from areal_lit.testing.tiny import tiny_spec
from areal_lit_inference.transformers import Transformers
from areal_lit_launchers.inline import Inline


@pytest.fixture
def inline(tmp_path):
    launcher = Inline()
    launcher.setup(tmp_path, lambda death: None, Logs())
    yield launcher
    launcher.stop()


def test_more_ranks_are_refused(inline):
    with pytest.raises(ValueError, match=r"one rank.*wants 2.*local"):
        inline.start_group(GroupSpec(name="policy", target="areal_lit.testing.launcher_case:EchoRank", num_ranks=2))


@pytest.mark.parametrize("spec", [{"argv": ("true",)}, {"target": "a:b", "python": "/other/python"}])
def test_command_lines_and_interpreters_are_refused(inline, spec):
    with pytest.raises(ValueError, match="local"):
        inline.start_process(ProcessSpec(name="engine-0", **spec))


def test_functions_of_main_travel(inline):
    group = inline.start_group(GroupSpec(name="policy", target="areal_lit.testing.launcher_case:EchoRank"))
    function = lambda: 1  # noqa: E731
    assert group.call("echo", function, timeout_s=1)[0].result(0) == (function,)


def test_components_within_arguments_are_copied_and_batches_are_not(inline):
    group = inline.start_group(GroupSpec(name="policy", target="areal_lit.testing.launcher_case:EchoRank"))
    batch, component = torch.ones(3), Marked()
    ((got,), copies) = group.call("echo", (component,), per_rank=[[batch]], timeout_s=1)[0].result(0)
    assert got is batch
    assert isinstance(copies[0], Marked)
    assert copies[0] is not component


def test_rank_and_engine_share_the_number_of_threads_until_the_end(inline):
    before = torch.get_num_threads()
    seen = queue.SimpleQueue()
    group = inline.start_group(GroupSpec(name="policy", target=f"{__name__}:CountsThreads", num_threads=before + 1))
    engine = inline.start_process(
        ProcessSpec(name="engine-0", target=f"{__name__}:report_threads", kwargs={"seen": seen}, num_threads=before + 1)
    )
    assert group.call("count", timeout_s=1)[0].result(0) == before + 1
    assert seen.get(timeout=60) == before + 1
    engine.stop()
    assert group.call("count", timeout_s=1)[0].result(0) == before + 1
    inline.stop()
    assert torch.get_num_threads() == before


def test_unequal_numbers_of_threads_are_told_before_anything_starts():
    unequal = ["policy.num_threads=2", "inference.init_args.num_threads=1"]
    (rule,) = recipes.load("quickstart_inline", overrides=unequal).validate()
    assert "got policy.num_threads 2, engine-0 (inference) 1" in rule


class CountsThreads:
    def __init__(self, rank):
        pass

    def count(self):
        return torch.get_num_threads()


def report_threads(address, *, seen):
    seen.put(torch.get_num_threads())


def test_an_engine_whose_client_never_came_ends_at_once(tmp_path):
    launcher = Inline()
    launcher.setup(tmp_path, lambda death: None, Logs())
    spec = tiny_spec(tmp_path)
    (engine,) = Transformers().processes(spec, seed=0, deterministic=False)
    process = launcher.start_process(engine)
    process.stop(grace_s=60.0)
    launcher.stop()
    assert not process.is_alive()
    assert not os.path.exists(os.path.dirname(process.address))


def test_a_thread_that_does_not_return_is_named(tmp_path, caplog):
    launcher = Inline()
    launcher.setup(tmp_path, lambda death: None, Logs())
    release = threading.Event()
    process = launcher.start_process(
        ProcessSpec(name="engine-0", target=f"{__name__}:ignore_everything", kwargs={"release": release})
    )
    process.stop(grace_s=0.1)
    assert "engine-0 has not returned 0.1 s after its client left" in caplog.text
    release.set()
    launcher.stop()
    assert not process.is_alive()


def ignore_everything(address, *, release):
    release.wait(60)


def test_an_engine_thread_that_raises_is_reported(tmp_path):
    deaths = queue.SimpleQueue()
    launcher = Inline()
    launcher.setup(tmp_path, deaths.put, Logs())
    launcher.start_process(ProcessSpec(name="engine-0", target="os:listdir"))
    death = deaths.get(timeout=60)
    assert (death.name, death.reason[:24]) == ("engine-0", "raised FileNotFoundError")
    launcher.stop()
