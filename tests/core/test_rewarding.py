"""The reward pool: whatever a reward does, the others are scored and nothing is left running."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.contracts import GroupReward, Reward
from areal_lit.logs import Logs, rotated
from areal_lit.rewarding import RewardError, Rewarding, Scorer
from areal_lit.rewarding.worker import judge
from areal_lit.testing.reward import completion
from areal_lit.types import Scored, Trajectory, Unscored


def run_forever() -> None:
    """In C, without ever letting go of the interpreter: no signal handler and no other thread can run."""
    sum(range(10**13))


class Scripted(Reward):
    """Does what the completion says."""

    def score(self, trajectory: Trajectory) -> Any:
        acts: dict[str, Callable[[], Any]] = {
            "hang": run_forever,
            "exit": lambda: os._exit(0),
            "segfault": lambda: ctypes.string_at(0),
            "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "raise": lambda: 1 / 0,
            "sys.exit": lambda: sys.exit(3),
            "nan": lambda: float("nan"),
            "inf": lambda: Scored(value=float("inf")),
            "none": lambda: None,
            "text": lambda: "1.0",
            "list": lambda: [1.0],
            "unscored": lambda: Unscored(reason="no gold"),
            "parts": lambda: Scored(value=2.0, parts={"a": 1.0}, metrics={"b": 3.0}),
        }
        act = acts.get(trajectory.text)
        return float(trajectory.sample) if act is None else act()


class Sleepy(Reward):
    def score(self, trajectory: Trajectory) -> float:
        time.sleep(0.2)
        return 1.0


class Loud(Reward):
    def score(self, trajectory: Trajectory) -> float:
        os.write(1, b"noise\n" * 2**20)
        print("reward says hello")
        return 1.0


class Parent(Reward):
    """Starts a child process that would outlive it, and says which."""

    def score(self, trajectory: Trajectory) -> float:
        child = subprocess.Popen(["sleep", "1000"])
        Path(trajectory.prompt.fields["pids"]).write_text(f"{os.getpid()} {child.pid}")
        if trajectory.text == "hang":
            run_forever()
        return 1.0


class Flaky(Reward):
    """Fails on its first call for a trajectory."""

    def score(self, trajectory: Trajectory) -> float:
        marker = Path(trajectory.prompt.fields["marker"])
        if marker.exists():
            return 1.0
        marker.touch()
        raise OSError("service unavailable")


class Broken(Reward):
    def setup(self) -> None:
        raise FileNotFoundError("no such lexicon: words.txt")

    def score(self, trajectory: Trajectory) -> float:
        return 1.0


class Dying(Broken):
    def setup(self) -> None:
        os._exit(7)


class Ranks(GroupReward):
    def score_group(self, trajectories: Any) -> list[float]:
        lengths = sorted(len(each.text) for each in trajectories)
        return [float(lengths.index(len(each.text))) for each in trajectories]


class Remote(Reward):
    async def score(self, trajectory: Trajectory) -> float:
        if trajectory.text == "raise":
            raise ConnectionError("refused")
        await asyncio.sleep(60 if trajectory.text == "hang" else 0)
        return 1.0


@contextmanager
def running(reward: Reward, path: Path, *, in_process: bool = False, **settings: Any) -> Iterator[Scorer]:
    scorer = Scorer(
        Rewarding(**settings), rewards={"default": reward}, in_process=in_process, log_dir=path, logs=Logs(max_mib=4)
    )
    scorer.start()
    try:
        yield scorer
    finally:
        scorer.stop()


def texts(*names: str) -> list[Trajectory]:
    return [replace(completion(name), sample=index) for index, name in enumerate(names)]


def metric(scorer: Scorer, name: str) -> float:
    return {each.name: each.value for each in scorer.metrics()}[name]


def gone(pid: int, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


async def test_each_trajectory_gets_its_own_reward_in_order(tmp_path: Path) -> None:
    reward = Scripted()
    with running(reward, tmp_path, batch_size=3) as scorer:
        scored, alone = await asyncio.gather(
            scorer.score(reward, texts(*"abcdefghij")), scorer.score(reward, texts("parts"))
        )
        assert [each.reward for each in scored] == [float(index) for index in range(10)]
        assert [each.text for each in scored] == list("abcdefghij")
        assert (alone[0].reward, alone[0].reward_parts, alone[0].metrics) == (2.0, {"a": 1.0}, {"b": 3.0})
        assert await scorer.score(reward, []) == []


@pytest.mark.parametrize("in_process", [False, True])
async def test_what_is_no_finite_number_is_unscored_and_counted(tmp_path: Path, in_process: bool) -> None:
    reward = Scripted()
    names = ("raise", "sys.exit", "nan", "inf", "none", "text", "list", "unscored")
    with running(reward, tmp_path, in_process=in_process) as scorer:
        *bad, good = await scorer.score(reward, texts(*names, "fine"))
        counts = {each.name: each.value for each in scorer.metrics()}
    kinds = [each.unscored.split(":")[0] for each in bad]
    assert kinds == ["error", "error", "invalid", "invalid", "invalid", "invalid", "invalid", "unscored"]
    assert all(each.reward is None for each in bad)
    assert "ZeroDivisionError" in bad[0].unscored
    assert (good.reward, good.unscored) == (8.0, "")
    assert counts["reward/unscored"] == 8
    assert (counts["reward/unscored_error"], counts["reward/unscored_invalid"]) == (2, 5)
    assert counts["reward/retries"] == 8


@pytest.mark.parametrize(
    ("name", "reason"),
    [("hang", "timeout"), ("exit", "exit code 0"), ("segfault", "exit code -11"), ("killed", "exit code -9")],
)
async def test_only_the_call_that_ends_its_worker_is_unscored(tmp_path: Path, name: str, reason: str) -> None:
    reward = Scripted()
    names = ["ok"] * 9
    names[4] = name
    with running(reward, tmp_path, num_workers=1, timeout_s=0.3) as scorer:
        scored = await scorer.score(reward, texts(*names))
        assert [each.reward for each in scored] == [0, 1, 2, 3, None, 5, 6, 7, 8]
        assert reason in scored[4].unscored
        assert [each.reward for each in await scorer.score(reward, texts("ok"))] == [0.0], "the worker is replaced"


@pytest.mark.parametrize(("name", "kind"), [("hang", "timeout: no result within"), ("exit", "crash: .*exit code 0")])
async def test_a_reward_that_only_kills_workers_is_told_and_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    reward = Scripted()
    with (
        running(reward, tmp_path, num_workers=1, timeout_s=0.2, max_kills_in_row=3) as scorer,
        pytest.raises(RewardError, match=rf"3 calls of rewards in a row .* 'default' \({kind}"),
    ):
        await scorer.score(reward, texts(*[name] * 8))
    assert [m for m in caplog.messages if m.startswith("a call of reward 'default' had its worker replaced")]


async def test_an_async_reward_that_only_hangs_ends_the_run(tmp_path: Path) -> None:
    reward = Remote()
    settings = {"timeout_s": 0.01, "max_attempts": 1, "max_kills_in_row": 3}
    with running(reward, tmp_path, **settings) as scorer:
        await scorer.score(reward, texts("hang", "hang"))
        await scorer.score(reward, texts("ok"))
        with pytest.raises(RewardError, match=r"'default' has hung 3 times in a row.*timeout_s"):
            await scorer.score(reward, texts("hang", "hang", "hang"))


async def test_answers_between_kills_keep_the_run_alive(tmp_path: Path) -> None:
    reward = Scripted()
    with running(reward, tmp_path, num_workers=1, max_attempts=1, batch_size=1, max_kills_in_row=2) as scorer:
        scored = await scorer.score(reward, texts(*["exit", "ok", "raise"] * 2))
    assert [each.unscored.split(":")[0] for each in scored] == ["crash", "", "error"] * 2


async def test_the_first_unscored_of_a_kind_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reward = Scripted()
    with running(reward, tmp_path, in_process=True, max_attempts=1) as scorer:
        await scorer.score(reward, texts("raise", "raise", "nan"))
    first, second = caplog.messages
    assert "reward 'default' has no value for row 0 of source 'test': error: ZeroDivisionError" in first
    assert "invalid: returned nan" in second


async def test_time_in_the_queue_does_not_count(tmp_path: Path) -> None:
    reward = Sleepy()
    with running(reward, tmp_path, num_workers=1, timeout_s=1.0) as scorer:
        scored = await scorer.score(reward, texts(*"abcdefgh"))
        assert [each.reward for each in scored] == [1.0] * 8
        assert metric(scorer, "reward/killed_workers") == 0


async def test_a_failed_call_is_tried_again_and_then_raised_if_asked(tmp_path: Path) -> None:
    flaky = Flaky()
    with running(flaky, tmp_path, on_failure="raise") as scorer:
        first = completion("x", marker=str(tmp_path / "marker"))
        assert (await scorer.score(flaky, [first]))[0].reward == 1.0
        assert metric(scorer, "reward/retries") == 1
    with running(flaky, tmp_path, on_failure="raise", max_attempts=1) as scorer:
        second = completion("x", marker=str(tmp_path / "other"))
        with pytest.raises(RewardError, match=r"'default'.*row 0 of source 'test'.*service unavailable"):
            await scorer.score(flaky, [second])


async def test_a_group_reward_sees_the_whole_group(tmp_path: Path) -> None:
    reward = Ranks()
    with running(reward, tmp_path, batch_size=1) as scorer:
        scored = await scorer.score(reward, texts("ccc", "a", "bb"))
    assert [each.reward for each in scored] == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("in_process", [False, True])
async def test_async_rewards_run_on_the_loop_with_a_deadline(tmp_path: Path, in_process: bool) -> None:
    reward = Remote()
    with running(reward, tmp_path, in_process=in_process, timeout_s=0.1, max_attempts=1) as scorer:
        scored = await scorer.score(reward, texts("ok", "hang", "raise"))
        assert not (tmp_path / "reward.log").exists(), "no pool is needed"
    assert [each.reward for each in scored] == [1.0, None, None]
    assert [each.unscored.split(":")[0] for each in scored[1:]] == ["timeout", "error"]


async def test_output_goes_to_a_capped_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reward = Loud()
    with running(reward, tmp_path, num_workers=1) as scorer:
        for _ in range(6):
            assert (await scorer.score(reward, texts("a")))[0].reward == 1.0
    logs = rotated(tmp_path / "reward.log")
    assert len(logs) == 3
    assert all(log.stat().st_size <= 4 * 2**20 for log in logs)
    assert "bytes of older output dropped" in logs[-1].read_text().partition("\n")[0]
    assert logs[-1].read_text().endswith("reward says hello\n")
    assert capfd.readouterr().out == ""


async def test_children_of_a_killed_worker_end_with_it(tmp_path: Path) -> None:
    reward = Parent()
    pids = tmp_path / "pids"
    with running(reward, tmp_path, timeout_s=0.3, max_attempts=1) as scorer:
        (scored,) = await scorer.score(reward, [completion("hang", pids=str(pids))])
        assert "timeout" in scored.unscored
        assert all(gone(int(pid)) for pid in pids.read_text().split())
        await scorer.score(reward, [completion("ok", pids=str(pids))])
    assert all(gone(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_controller(tmp_path: Path, signum: int) -> None:
    """The script has no main guard: workers must not import it, or it would start scorers without end."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_rewarding import Logs, Parent, Rewarding, Scorer, completion
reward = Parent()
path = Path({str(tmp_path)!r})
scorer = Scorer(Rewarding(num_workers=1), rewards={{"default": reward}}, in_process=False, log_dir=path, logs=Logs())
scorer.start()
asyncio.run(scorer.score(reward, [completion("hang", pids=str(path / "pids"))]))
"""
    )
    process = subprocess.Popen([sys.executable, str(script)])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
            assert process.poll() is None, "the script ended early"
            assert time.monotonic() < deadline, "no call began"
            time.sleep(0.02)
        group = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signum)
        assert process.wait(timeout=20) == -signum
        assert len(group) >= 3
        assert all(gone(each.pid) for each in group)
    finally:
        process.kill()
        process.wait(timeout=20)


@pytest.mark.parametrize(("reward", "reason"), [(Broken(), "words.txt"), (Dying(), "exit code 7")])
async def test_a_failing_setup_ends_waiting_calls_with_its_reason(tmp_path: Path, reward: Reward, reason: str) -> None:
    with running(reward, tmp_path) as scorer:
        with pytest.raises(RewardError, match=reason):
            await scorer.score(reward, texts("a"))
        with pytest.raises(RewardError, match=reason):
            scorer.wait_ready(30)
        with pytest.raises(RewardError, match=reason):
            await scorer.score(reward, texts("a"))


async def test_a_worker_with_other_versions_refuses_to_score(tmp_path: Path) -> None:
    expected = {"areal_lit_rewards.math.Math": "areal-lit 0.0.1"}
    scorer = Scorer(
        Rewarding(),
        rewards={"default": Scripted()},
        in_process=False,
        log_dir=tmp_path,
        logs=Logs(),
        fingerprint=expected,
    )
    scorer.start()
    try:
        with pytest.raises(RewardError, match=r"Math: areal-lit .* here, areal-lit 0\.0\.1 on the controller"):
            scorer.wait_ready(60)
    finally:
        scorer.stop()


async def test_stop_ends_waiting_calls(tmp_path: Path) -> None:
    reward = Scripted()
    with running(reward, tmp_path, num_workers=1) as scorer:
        scorer.wait_ready(60)
        waiting = asyncio.create_task(scorer.score(reward, texts("hang", "ok")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.to_thread(scorer.stop)
        with pytest.raises(RewardError, match="stopped"):
            await waiting
        with pytest.raises(RewardError, match="not running"):
            await scorer.score(reward, texts("ok"))
    assert not any(thread.name == "reward-pool" for thread in threading.enumerate())


async def test_an_abandoned_inline_call_does_not_stop_the_others(tmp_path: Path) -> None:
    reward = Sleepy()
    with running(reward, tmp_path, in_process=True, timeout_s=0.05, max_attempts=1) as scorer:
        scored = await scorer.score(reward, texts("a", "b"))
    assert [each.unscored.split(":")[0] for each in scored] == ["timeout", "timeout"]


async def test_an_example_that_does_not_pickle_spoils_only_itself(tmp_path: Path) -> None:
    reward = Scripted()
    odd = completion("odd", check=lambda text: True)
    with running(reward, tmp_path) as scorer:
        scored = await scorer.score(reward, [*texts("a"), odd, *texts("b")])
    assert [each.reward for each in scored] == [0.0, None, 0.0]
    assert "cannot be sent" in scored[1].unscored


def test_a_reward_of_the_script_itself_is_refused_with_the_way_out(tmp_path: Path) -> None:
    local = type("Local", (Scripted,), {"__module__": "__main__"})
    for reward in (local(), type("Lost", (Scripted,), {})()):
        scorer = Scorer(Rewarding(), rewards={"default": reward}, in_process=False, log_dir=tmp_path, logs=Logs())
        with pytest.raises(ValueError, match=r"importable module.*inline launcher"):
            scorer.start()
        scorer.stop()


async def test_a_reward_of_the_script_itself_runs_inline(tmp_path: Path) -> None:
    reward = type("Local", (Scripted,), {"__module__": "__main__"})()
    with running(reward, tmp_path, in_process=True) as scorer:
        assert (await scorer.score(reward, texts("a")))[0].reward == 0.0


async def test_an_unknown_reward_is_refused(tmp_path: Path) -> None:
    with (
        running(Scripted(), tmp_path, in_process=True) as scorer,
        pytest.raises(ValueError, match="not among"),
    ):
        await scorer.score(Sleepy(), texts("a"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": 0},
        {"timeout_s": 0.0},
        {"max_attempts": 0},
        {"batch_size": 0},
        {"max_kills_in_row": 0},
        {"on_failure": "zero"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"rewarding.{next(iter(wrong))} must"):
        Rewarding(**wrong)


@pytest.mark.parametrize("value", [1e300, -1e300, 1e39, 10**300])
def test_judge_refuses_what_float32_cannot_train_on(value: float) -> None:
    for score in (value, Scored(value=value)):
        outcome = judge(score)
        assert (outcome.value, outcome.kind) == (None, "invalid")
        assert "rewards must be within" in outcome.reason
    assert judge(-1e18).value == -1e18


@given(st.one_of(st.none(), st.text(), st.floats(), st.booleans(), st.integers(), st.lists(st.floats()), st.binary()))
def test_judge_gives_a_finite_number_or_a_reason_that_travels(score: object) -> None:
    outcome = pickle.loads(pickle.dumps(judge(score)))
    if isinstance(score, int | float) and abs(score) <= 1e18:
        assert outcome.value == float(score)
    if outcome.value is None:
        assert outcome.kind == "invalid"
        assert outcome.reason
