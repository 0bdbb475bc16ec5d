"""check_callback passes a sound callback and fails each planted bug."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress

import pytest

from areal_lit import hookimpl
from areal_lit.contracts import Callback
from areal_lit.testing import check_callback


class Counts(Callback):
    """Sound, with a hook of each kind."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def fit_start(self, trainer):
        self.seen.append(trainer.step)

    @hookimpl
    def step_end(self, step, metrics):
        self.seen.append(metrics["rollout/reward"])

    @hookimpl
    def group_ready(self, group):
        return bool(group.rewards)

    @hookimpl
    def rollout_error(self, prompt, error, attempt):
        return "drop" if attempt > 2 else None

    @hookimpl
    def phase(self, name):
        return self.during(name)

    @contextmanager
    def during(self, name):
        try:
            yield
        finally:
            self.seen.append(name)


class Unmarked(Counts):
    def fit_end(self, status):
        self.seen.append(status)


class Misspelt(Callback):
    @hookimpl
    def step_ends(self, step):
        pass


class WrongArgument(Callback):
    @hookimpl
    def step_end(self, stp):
        pass


class Async(Callback):
    @hookimpl
    async def step_end(self, step):
        pass


class NoHooks(Callback):
    pass


class VagueVeto(Callback):
    @hookimpl
    def group_ready(self, group):
        return len(group.rewards)


class UnknownPolicy(Callback):
    @hookimpl
    def rollout_error(self, prompt, error, attempt):
        return "ignore"


class Swallows(Callback):
    @hookimpl
    def phase(self, name):
        return self.during()

    @contextmanager
    def during(self):
        with suppress(KeyError):
            yield


class BareGenerator(Callback):
    @hookimpl
    def phase(self, name):
        yield


class Answers(Callback):
    @hookimpl
    def step_end(self, step):
        return True


class HoldsLock(Callback):
    def __init__(self):
        self.lock = threading.Lock()

    @hookimpl
    def step_end(self, step):
        pass


class EndsUnstarted(Callback):
    @hookimpl
    def fit_start(self, trainer):
        self.start = trainer.step

    @hookimpl
    def fit_end(self, status):
        del self.start


def test_a_sound_callback_passes(tmp_path):
    check_callback(Counts, tmp_path)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Unmarked, "mark it with @areal_lit.hookimpl"),
        (Misspelt, "step_end"),
        (WrongArgument, "stp"),
        (Async, "never be awaited"),
        (NoHooks, "implements no hook"),
        (VagueVeto, "must return True, False or None, got 2"),
        (UnknownPolicy, "'ignore'"),
        (Swallows, "swallows exceptions"),
        (BareGenerator, "@contextmanager"),
        (Answers, "would be ignored"),
        (HoldsLock, "does not pickle"),
        (EndsUnstarted, "before fit_start"),
    ],
)
def test_planted_bugs_fail(tmp_path, mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_callback(mutant, tmp_path)
