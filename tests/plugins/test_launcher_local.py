"""The launcher `local` under faults: what dies, hangs or is left behind."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from child_processes import END_TIMEOUT_S, await_gone, children_called

from areal_lit.contracts.launcher import GroupSpec, ProcessDied, ProcessSpec
from areal_lit.logs import Logs
from areal_lit_launchers.local import Local
from areal_lit_launchers.local.channel import dumps, loads
from areal_lit_launchers.local.child import Child
from areal_lit_launchers.local.gpus import GpuPool

HERE = str(Path(__file__).parent)


@pytest.fixture
def deaths():
    return queue.SimpleQueue()


@pytest.fixture(params=["fresh", "forked"])
def local(request, tmp_path, deaths, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    launcher = Local(hang_timeout_s=60.0, stop_grace_s=1.0, fork=request.param == "forked")
    with Local.warm_up(["launcher_targets"]) if launcher.fork else contextlib.nullcontext():
        launcher.setup(tmp_path, deaths.put, Logs())
        yield launcher
        launcher.stop()


def start(launcher, target="Busy", **spec):
    return launcher.start_group(GroupSpec(name="policy", target=f"launcher_targets:{target}", **spec))


@pytest.mark.slow
def test_a_stopped_rank_is_reported_hung(local, deaths):
    local.hang_timeout_s = 5.0
    group = start(local, num_ranks=2)
    pids = [f.result(60) for f in group.call("pid", timeout_s=60)]
    os.kill(pids[1], signal.SIGSTOP)
    pending = group.call("sleep", 600, timeout_s=600)[1]
    death = deaths.get(timeout=60)
    assert (death.rank, death.exit_code) == (1, None)
    assert "sign of life" in death.reason
    assert isinstance(pending.exception(60), ProcessDied)
    assert await_gone([pids[1]]) == []


def test_a_hung_rank_leaves_its_stacks(local, deaths):
    group = start(local)
    assert group.call("add", 1, 2, timeout_s=60)[0].result(60) == 3, "it has started"
    error = group.call("hold_the_gil", timeout_s=1.0)[0].exception(60)
    assert isinstance(error, TimeoutError)
    death = deaths.get(timeout=60)
    assert "did not answer hold_the_gil within 1 s" in str(death)
    assert "in hold_the_gil" in death.log_tail


def test_a_hung_rank_may_take_a_while_to_write_its_stacks(local, deaths):
    group = start(local)
    (pid,) = [f.result(60) for f in group.call("pid", timeout_s=60)]
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, [pid, signal.SIGCONT]).start()
    group.call("add", 1, 2, timeout_s=0.1)
    assert "most recent call first" in deaths.get(timeout=60).log_tail


class Silent(Child):
    """Notes when it is taken for hung."""

    hung = False

    def hang(self, reason: str) -> None:
        self.hung = True


def test_a_slow_start_is_no_hang():
    process = SimpleNamespace(pid=1)
    child = Silent(name="engine-0", rank=0, process=process, log=None, spawner=None, on_death=print, hang_timeout_s=3.0)
    child.check(child.last_seen + 50)
    assert not child.hung, "a busy machine may take a while to start an interpreter"
    child.check(child.last_seen + 61)
    assert child.hung
    child.hung = False
    child.seen()
    child.check(child.last_seen + 4)
    assert child.hung, "once it has spoken the limit is hang_timeout_s"


def test_a_killed_rank_is_reported_with_its_signal(local, deaths):
    group = start(local)
    (pid,) = [f.result(60) for f in group.call("pid", timeout_s=60)]
    os.kill(pid, signal.SIGKILL)
    death = deaths.get(timeout=60)
    assert (death.name, death.exit_code, death.reason) == ("policy", -9, "was killed")


def test_a_constructor_that_raises_shows_its_traceback(local, deaths):
    group = start(local, "Refuses")
    error = group.call("pid", timeout_s=60)[0].exception(60)
    assert isinstance(error, ProcessDied)
    assert "ValueError: no such model" in str(error)
    assert deaths.get(timeout=60).exit_code == 1


def test_children_of_ranks_end_with_stop(local):
    group = start(local)
    (pid,) = [f.result(60) for f in group.call("spawn_child", timeout_s=60)]
    group.stop()
    assert await_gone([pid]) == []


def test_one_group_that_cannot_be_stopped_leaves_no_other_running(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)

    launcher = Local(stop_grace_s=1.0)
    launcher.setup(tmp_path, print, Logs())
    groups = [start(launcher), start(launcher)]
    server = launcher.start_process(ProcessSpec(name="engine-0", target="launcher_targets:listens"))
    pids = [f.result(60) for group in groups for f in group.call("pid", timeout_s=60)]
    pids.append(server.child.process.pid)
    end = groups[1].stop

    def stop():
        end()
        raise TimeoutError("policy rank 0 did not end")

    groups[1].stop = stop
    with pytest.raises(TimeoutError, match="did not end"):
        launcher.stop()
    assert await_gone(pids) == []
    assert not os.path.exists(os.path.dirname(server.address))
    launcher.stop()


def test_a_group_that_starts_half_is_stopped(local, tmp_path):
    (tmp_path / "policy-1.log").mkdir()
    with pytest.raises(IsADirectoryError):
        start(local, num_ranks=2)
    while not (ranks := children_called("policy-0")):
        time.sleep(0.02)
    local.stop()
    assert await_gone([rank.pid for rank in ranks]) == []


def test_stop_in_the_middle_of_a_call_is_quick_and_reports_nothing(local, deaths):
    group = start(local, num_ranks=2)
    pending = group.call("sleep", 600, timeout_s=600)
    local.stop()
    assert all(isinstance(f.exception(60), ProcessDied) for f in pending)
    assert deaths.empty()
    with pytest.raises(ValueError, match="setup"):
        start(local)


def test_what_cannot_come_back_is_an_error_of_the_call(local):
    group = start(local)
    assert isinstance(group.call("unpicklable", timeout_s=60)[0].exception(60), ValueError)
    awkward = group.call("raise_awkward", timeout_s=60)[0].exception(60)
    assert isinstance(awkward, RuntimeError)
    assert "Awkward: one and two" in str(awkward)
    assert "launcher_targets.py" in str(awkward.__cause__)
    assert group.call("add", 1, 2, timeout_s=60)[0].result(60) == 3


def test_functions_of_main_are_refused_with_the_way_out():
    def reward():
        return 1.0

    reward.__module__ = "__main__"
    with pytest.raises(ValueError, match=r"__main__.*module.*inline"):
        dumps({"reward": reward})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 301)])
def test_tensors_travel_bit_for_bit(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    got = loads([bytearray(part) for part in dumps({"t": tensor})])["t"]
    assert (got.dtype, got.shape) == (dtype, shape)
    assert torch.equal(got.float(), tensor.float())
    got.fill_(1)


def test_a_process_that_never_listens_is_reported(local, deaths):
    process = local.start_process(
        ProcessSpec(name="engine-0", target="launcher_targets:never_listens", start_timeout_s=0.5)
    )
    death = deaths.get(timeout=60)
    assert "did not listen" in death.reason
    assert not process.is_alive()


def test_a_target_that_returns_has_finished_and_is_no_death(local, deaths):
    finished = local.start_process(ProcessSpec(name="engine-0", target="launcher_targets:returns"))
    assert finished.child.ended.wait(60)
    died = local.start_process(ProcessSpec(name="engine-1", target="launcher_targets:returns", kwargs={"code": 0}))
    assert deaths.get(timeout=60).name == "engine-1"
    assert deaths.empty()
    assert not finished.is_alive()
    assert not died.is_alive()


def test_a_command_line_gets_ports_and_is_watched(local, deaths, tmp_path):
    spec = ProcessSpec(
        name="server",
        argv=(sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", str(tmp_path)),
        health_path="/",
        start_timeout_s=60,
    )
    process = local.start_process(spec)
    assert process.address == f"127.0.0.1:{process.ports[0]}"
    process.stop()
    assert not process.is_alive()
    assert deaths.empty()
    broken = local.start_process(ProcessSpec(name="typo", argv=("no-such-program",)))
    assert "cannot run 'no-such-program'" in str(deaths.get(timeout=60))
    assert not broken.is_alive()


def test_a_process_needs_a_target_or_a_command(local):
    with pytest.raises(ValueError, match="target or an argv"):
        local.start_process(ProcessSpec(name="neither"))


def test_an_interpreter_that_does_not_exist_is_an_error(local):
    spec = ProcessSpec(name="engine-0", target="launcher_targets:listens", python="/no/such/python")
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        local.start_process(spec)


def test_process_arguments_must_be_importable(local):
    with pytest.raises(ValueError, match="module"):
        local.start_process(ProcessSpec(name="engine-0", target="launcher_targets:listens", kwargs={"note": lambda: 1}))


SCRIPT = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
import psutil
sys.path.insert(0, sys.argv[1])
from areal_lit.contracts.launcher import GroupSpec, ProcessSpec
from areal_lit.logs import Logs
from areal_lit_launchers.local import Local
launcher = Local()
warm = Local.warm_up(["launcher_targets"])
if sys.argv[3] == "forked":
    warm.__enter__()
launcher.setup(Path(sys.argv[2]), print, Logs())
group = launcher.start_group(GroupSpec(name="policy", target="launcher_targets:Busy", num_ranks=2))
server = launcher.start_process(ProcessSpec(name="engine-0", target="launcher_targets:listens"))
sleeper = (sys.executable, "-c", "import time; time.sleep(600)")
command = launcher.start_process(ProcessSpec(name="sleeper", argv=sleeper))
pids = [f.result(60) for method in ("pid", "spawn_child") for f in group.call(method, timeout_s=60)]
group.call("hold_the_gil", timeout_s=600)
pids += [server.child.process.pid, command.child.process.pid]
if sys.argv[3] == "forked":
    pids += [child.pid for child in psutil.Process().children() if child.cmdline()[-1].startswith("fork-server")]
print(*pids, launcher.scratch, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("fresh", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("forked", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("forked", "sys.exit(0)"),
        ("forked", "raise KeyError('x')"),
    ],
)
def test_nothing_is_left_of_a_controller_that_ends(tmp_path, start, end):
    script = subprocess.run(
        [sys.executable, "-c", SCRIPT + end, HERE, str(tmp_path), start],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    *pids, socket_dir = script.stdout.split()
    assert len(pids) == 6 + (start == "forked"), script.stderr
    assert await_gone([int(pid) for pid in pids]) == []
    deadline = time.monotonic() + END_TIMEOUT_S
    while os.path.exists(socket_dir) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(socket_dir)


def test_gpus_are_handed_out_once(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    pool = GpuPool()
    assert pool.take(2, "policy") == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert pool.take(0, "server") == {}
    assert pool.take(0.5, "engine-0") == pool.take(0.5, "engine-1") == {"CUDA_VISIBLE_DEVICES": "6"}
    with pytest.raises(ValueError, match="policy wants 1 GPUs, but of 3 on this machine 0 are free"):
        pool.take(1, "policy")


@pytest.mark.parametrize("arguments", [{"hang_timeout_s": 1.0}, {"stop_grace_s": -1}])
def test_arguments_are_checked(arguments):
    with pytest.raises(ValueError, match="must be"):
        Local(**arguments)


def test_an_unstarted_launcher_pickles_and_stops():
    pickle.loads(pickle.dumps(Local())).stop()
