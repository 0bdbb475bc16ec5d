"""The launchers pass the suite, and the suite fails launchers with planted bugs."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from areal_lit.testing.launcher import check_launcher
from areal_lit.testing.launcher_case import TOKEN
from areal_lit_launchers.inline import Inline, InlineGroup
from areal_lit_launchers.local import Local


def test_inline_conforms(tmp_path):
    check_launcher(Inline(), tmp_path)


def test_local_conforms(tmp_path):
    check_launcher(Local(), tmp_path)


class SwallowsErrors(Inline):
    def start_group(self, spec):
        class Group(InlineGroup):
            def call(self, method, *args, per_rank=None, timeout_s):
                futures = super().call(method, *args, per_rank=per_rank, timeout_s=timeout_s)
                quiet = Future()
                quiet.set_result(None if futures[0].exception() else futures[0].result())
                return [quiet]

        return Group(spec)


class SwapsArguments(Inline):
    def start_group(self, spec):
        class Group(InlineGroup):
            def call(self, method, *args, per_rank=None, timeout_s):
                if per_rank is None:
                    return super().call(method, *args, timeout_s=timeout_s)
                return super().call(method, *args, *per_rank, timeout_s=timeout_s)

        return Group(spec)


class ReversesRanks(Local):
    def start_group(self, spec):
        group = super().start_group(spec)
        group.ranks = group.ranks[::-1]
        return group


class ReportsNoDeath(Local):
    def setup(self, log_dir, on_death, logs):
        super().setup(log_dir, lambda death: None, logs)


class ReportsTwice(Local):
    def setup(self, log_dir, on_death, logs):
        def twice(death):
            on_death(death)
            on_death(death)

        super().setup(log_dir, twice, logs)


class SharesComponents(Inline):
    def start_group(self, spec):
        class Group(InlineGroup):
            def call(self, method, *args, per_rank=None, timeout_s):
                if method == "set_up":
                    self._subject.set_up(*(per_rank or args))
                return super().call(method, *args, per_rank=per_rank, timeout_s=timeout_s)

        return Group(spec)


class WritesSecrets(Local):
    def start_group(self, spec):
        (self._log_dir / f"{spec.name}-0.log").write_text(TOKEN)
        return super().start_group(spec)


class LeavesFiles(Inline):
    def setup(self, log_dir, on_death, logs):
        super().setup(log_dir, on_death, logs)
        self.scratch = log_dir / "scratch"
        self.scratch.mkdir()


class StopsNothing(Local):
    def stop(self):
        pass


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (SwallowsErrors, "reaches the caller"),
        (SwapsArguments, "per_rank values come first"),
        (ReversesRanks, "know their place"),
        pytest.param(ReportsNoDeath, "once for each rank", marks=pytest.mark.slow),
        (ReportsTwice, "once for each rank"),
        (SharesComponents, "arrives as a copy"),
        (WritesSecrets, "secrets are hidden"),
        (StopsNothing, "must end every process"),
        (LeavesFiles, "must remove .*, its scratch directory"),
    ],
)
def test_suite_fails_planted_bugs(tmp_path, mutant, rule):
    launcher = mutant()
    try:
        with pytest.raises(AssertionError, match=rule):
            check_launcher(launcher, tmp_path)
    finally:
        super(mutant, launcher).stop()
