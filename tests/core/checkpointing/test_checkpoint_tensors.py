"""Nested states in safetensors files: what goes in comes out, and nothing runs."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.checkpointing.tensors import load_state, map_tensors, save_state

SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)
STATES = st.recursive(
    SCALARS | TENSORS,
    lambda inner: (
        st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


@given(state=STATES)
@settings(max_examples=60)
def test_a_state_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    file = tmp_path_factory.mktemp("state") / "state"
    save_state(state, file)
    assert same(load_state(file), state)


def test_keys_that_look_alike_stay_apart(tmp_path: Path) -> None:
    state = {1: torch.zeros(2), "1": torch.ones(2), "a/b": torch.zeros(1), "a": {"b": torch.ones(1)}, "": [1, "'1'"]}
    save_state(state, tmp_path / "state")
    assert same(load_state(tmp_path / "state"), state)


def test_an_optimizer_goes_on_from_its_state(tmp_path: Path) -> None:
    def optimizer() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        parameter = torch.nn.Parameter(torch.ones(3))
        return parameter, torch.optim.AdamW([parameter], lr=0.1)

    def step(parameter: torch.nn.Parameter, made: torch.optim.Optimizer) -> None:
        parameter.grad = torch.tensor([1.0, -2.0, 0.5])
        made.step()

    first, before = optimizer()
    step(first, before)
    save_state({"p": first, "optimizer": before.state_dict()}, tmp_path / "state")
    state = load_state(tmp_path / "state")
    second, after = optimizer()
    second.data.copy_(state["p"])
    after.load_state_dict(state["optimizer"])
    for parameter, made in ((first, before), (second, after)):
        step(parameter, made)
    assert torch.equal(first, second)


def test_paths_of_tensors_are_told() -> None:
    state = {"a": [torch.zeros(1), 3], 7: {"b": torch.zeros(2)}}
    told = map_tensors(state, lambda path, tensor: (path, len(tensor)))
    assert told == {"a": [("'a'/0", 1), 3], 7: {"b": ("7/'b'", 2)}}


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_state({"x": object()}, tmp_path / "state")


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process may have 10 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_a_file_that_cannot_be_written_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"\] File too large: '.*/state'$") as raised:
        save_state({"x": torch.zeros(10_000)}, tmp_path / "state")
    assert raised.value.errno == errno.EFBIG
