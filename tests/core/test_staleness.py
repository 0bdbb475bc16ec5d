"""The admission rule: how old a consumed token can be, under any interleaving."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.rollout import Rollout, Warmup
from areal_lit.staleness import capacity, is_stale


@pytest.mark.parametrize(
    ("version", "accepted", "running", "max_concurrent", "expected"),
    [
        (0, 0, 0, 100, 12),  # three steps of four groups ahead of version 0
        (0, 0, 0, 5, 5),
        (0, 8, 3, 100, 1),
        (1, 8, 3, 100, 5),
        (0, 12, 4, 100, 0),  # never negative
        (3, 0, 7, 4, 0),
    ],
)
def test_capacity_by_hand(version: int, accepted: int, running: int, max_concurrent: int, expected: int) -> None:
    got = capacity(
        version=version, accepted=accepted, running=running, groups_before=lambda step: 4 * step, max_staleness=2,
        max_concurrent=max_concurrent,
    )  # fmt: skip
    assert got == expected


def test_stale_is_more_than_max_staleness_steps() -> None:
    assert not is_stale(step=5, oldest_version=3, max_staleness=2)
    assert is_stale(step=6, oldest_version=3, max_staleness=2)
    assert not is_stale(step=6, oldest_version=None, max_staleness=0)


@dataclass
class Simulation:
    """Groups as the version they began with; ``step`` consumes, ``version`` follows every ``interval`` steps."""

    rollout: Rollout
    interval: int
    step: int = 0
    version: int = 0
    accepted: int = 0
    running: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    consumed_ages: list[int] = field(default_factory=list)
    num_stale: int = 0

    def admit(self) -> None:
        room = capacity(
            version=self.version, accepted=self.accepted, running=len(self.running),
            groups_before=self.rollout.groups_before, max_staleness=self.rollout.max_staleness,
            max_concurrent=self.rollout.concurrency,
        )  # fmt: skip
        self.running += [self.version] * room

    def finish(self, index: int, *, accept: bool) -> None:
        if self.running:
            began = self.running.pop(index % len(self.running))
            if accept:
                self.ready.append(began)
                self.accepted += 1

    def consume(self) -> None:
        fresh = [
            v
            for v in self.ready
            if not is_stale(step=self.step, oldest_version=v, max_staleness=self.rollout.max_staleness)
        ]
        self.num_stale += len(self.ready) - len(fresh)
        self.accepted -= len(self.ready) - len(fresh)
        self.ready = fresh
        wanted = self.rollout.groups_at(self.step)
        if len(self.ready) < wanted:
            return
        taken, self.ready = self.ready[:wanted], self.ready[wanted:]
        self.consumed_ages += [self.step - v for v in taken]
        self.step += 1
        if self.step % self.interval == 0:
            self.version = self.step


moves = st.lists(st.tuples(st.sampled_from(["admit", "finish", "reject", "consume"]), st.integers(0, 99)), max_size=200)


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    """Steps of one size, or of sizes that grow."""
    max_staleness, groups = draw(st.integers(0, 4)), draw(st.integers(1, 9))
    warmups = st.builds(Warmup, start=st.integers(1, groups), steps=st.integers(1, 12))
    rollout = Rollout(
        groups_per_step=groups, samples_per_group=1, max_staleness=max_staleness,
        max_concurrent=draw(st.integers(1, 30)), groups_warmup=draw(st.none() | warmups),
    )  # fmt: skip
    return Simulation(rollout=rollout, interval=draw(st.integers(1, max_staleness + 1)))


def play(run: Simulation, played: list[tuple[str, int]], *, in_order: bool) -> None:
    for move, index in played:
        if move == "admit":
            run.admit()
        elif move == "consume":
            run.consume()
        else:
            run.finish(0 if in_order else index, accept=move == "finish")
        assert run.accepted == len(run.ready) + len(run.consumed_ages)


@given(run=simulations(), played=moves)
def test_consumed_tokens_are_never_older_than_the_bound(run: Simulation, played: list[tuple[str, int]]) -> None:
    play(run, played, in_order=False)
    assert all(0 <= age <= run.rollout.max_staleness for age in run.consumed_ages)


@given(run=simulations(), played=moves)
def test_admission_alone_keeps_the_bound_when_groups_finish_in_order(
    run: Simulation, played: list[tuple[str, int]]
) -> None:
    play(run, played, in_order=True)
    assert run.num_stale == 0


@given(run=simulations(), rounds=st.integers(1, 12))
def test_a_run_never_stalls(run: Simulation, rounds: int) -> None:
    for _ in range(rounds * run.rollout.groups_per_step * 2):
        run.admit()
        run.finish(0, accept=True)
        run.consume()
    assert run.step >= rounds
