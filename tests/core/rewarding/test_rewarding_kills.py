"""Reward workers that hang, die or are stopped: only what they held is lost, and nothing outlives them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from child_processes import await_gone
from reward_parts import Broken, Dying, Parent, Remote, Scripted, Sleepy, running, texts

from areal_lit.contracts import Reward
from areal_lit.logs import Logs
from areal_lit.rewarding import RewardError, Rewarding, Scorer
from areal_lit.testing.reward import completion


@pytest.mark.parametrize(
    ("name", "timeout_s", "reason"),
    [
        ("hang", 1.0, "timeout"), ("exit", 60.0, "exit code 0"), ("segfault", 60.0, "exit code -11"),
        ("killed", 60.0, "exit code -9"),
    ],
)  # fmt: skip
async def test_only_the_call_that_ends_its_worker_is_unscored(
    tmp_path: Path, name: str, timeout_s: float, reason: str
) -> None:
    reward = Scripted()
    names = ["ok"] * 9
    names[4] = name
    with running(reward, tmp_path, num_workers=1, timeout_s=timeout_s) as scorer:
        scored = await scorer.score(reward, texts(*names))
        assert [each.reward for each in scored] == [0, 1, 2, 3, None, 5, 6, 7, 8]
        assert reason in scored[4].unscored
        assert [each.reward for each in await scorer.score(reward, texts("ok"))] == [0.0], "the worker is replaced"


@pytest.mark.parametrize(
    ("name", "timeout_s", "kind"),
    [("hang", 0.2, "timeout: no result within"), ("exit", 60.0, "crash: .*exit code 0")],
)
async def test_a_reward_that_only_kills_workers_is_told_and_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, timeout_s: float, kind: str
) -> None:
    reward = Scripted()
    with (
        running(reward, tmp_path, num_workers=1, timeout_s=timeout_s, max_kills_in_row=3) as scorer,
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


async def test_children_of_a_killed_worker_end_with_it(tmp_path: Path) -> None:
    reward = Parent()
    pids = tmp_path / "pids"
    with running(reward, tmp_path, timeout_s=2.0, max_attempts=1) as scorer:
        (scored,) = await scorer.score(reward, [completion("hang", pids=str(pids))])
        assert "timeout" in scored.unscored
        assert await_gone(map(int, pids.read_text().split())) == []
        await scorer.score(reward, [completion("ok", pids=str(pids))])
    assert await_gone(map(int, pids.read_text().split())) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_controller(tmp_path: Path, signum: int) -> None:
    """The script has no main guard: workers must not import it, or it would start scorers without end."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from reward_parts import Parent, completion
from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding, Scorer
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
        assert await_gone(each.pid for each in group) == []
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
