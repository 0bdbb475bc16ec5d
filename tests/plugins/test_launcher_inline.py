"""The launcher `inline`: what it refuses, and that `__main__` works there."""

from __future__ import annotations

import queue

import pytest

from areal_lit.contracts.launcher import GroupSpec, ProcessSpec
from areal_lit_launchers.inline import Inline


@pytest.fixture
def inline(tmp_path):
    launcher = Inline()
    launcher.setup(tmp_path, lambda death: None)
    yield launcher
    launcher.stop()


def test_more_ranks_are_refused(inline):
    with pytest.raises(ValueError, match=r"one rank.*wants 2.*local"):
        inline.start_group(GroupSpec(name="policy", target="areal_lit.testing.launcher:EchoRank", num_ranks=2))


@pytest.mark.parametrize("spec", [{"argv": ("true",)}, {"target": "a:b", "python": "/other/python"}])
def test_command_lines_and_interpreters_are_refused(inline, spec):
    with pytest.raises(ValueError, match="local"):
        inline.start_process(ProcessSpec(name="engine-0", **spec))


def test_values_are_shared_and_functions_of_main_travel(inline):
    group = inline.start_group(GroupSpec(name="policy", target="areal_lit.testing.launcher:EchoRank"))
    function = lambda: 1  # noqa: E731
    assert group.call("echo", group.put(function), timeout_s=1)[0].result(0) == (function,)


def test_an_engine_thread_that_raises_is_reported(tmp_path):
    deaths = queue.SimpleQueue()
    launcher = Inline()
    launcher.setup(tmp_path, deaths.put)
    launcher.start_process(ProcessSpec(name="engine-0", target="os:listdir"))
    death = deaths.get(timeout=10)
    assert (death.name, death.reason[:24]) == ("engine-0", "raised FileNotFoundError")
    launcher.stop()
