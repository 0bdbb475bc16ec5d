"""Processes that `local` forks: they find what fresh ones find, and nothing is left of their fork server."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from child_processes import END_TIMEOUT_S, await_gone, children_called

from areal_lit.contracts.launcher import GroupSpec, ProcessDied
from areal_lit.logs import Logs
from areal_lit_launchers.local import Local

HERE = str(Path(__file__).parent)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A directory on `sys.path`, for modules of a test's own."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def answers(group, method, *args):
    return [future.result(60) for future in group.call(method, *args, timeout_s=60)]


def start(launcher, **spec):
    return launcher.start_group(GroupSpec(name="policy", target="launcher_targets:Looks", **spec))


def fork_server():
    """The process whose processes are forked, as the system knows it."""
    (server,) = (child for child in children_called("fork-server") if child.ppid() == os.getpid())
    return server


def set_up(directory, on_death=print, **arguments):
    launcher = Local(stop_grace_s=1.0, **arguments)
    launcher.setup(directory / "logs", on_death, Logs())
    return launcher


FINDS = (
    "sorted(os.environ)",
    "os.environ['OMP_NUM_THREADS'], os.environ['RANK'], os.environ['GOMP_SPINCOUNT']",
    "sys.path",
    "os.getcwd()",
    "list(sys.flags)",
    "gc.isenabled()",
    "threading.current_thread() is threading.main_thread()",
    "os.getsid(0) == os.getpgid(0) == os.getpid()",
    "os.readlink('/proc/self/fd/0')",
    "sorted(os.readlink(entry.path).partition(':')[0] for entry in os.scandir('/proc/self/fd') if entry.name != '3')",
    "[psutil.Process().cmdline()[i] for i in (0, 1, 2, -1)]",
)


@pytest.mark.slow
def test_forked_processes_find_what_fresh_ones_find(modules):
    found = {}
    for fork in (False, True):
        with Local.warm_up(["launcher_targets"]):
            launcher = set_up(modules, fork=fork)
            group = start(launcher, num_threads=1)
            found[fork] = [answers(group, "evaluate", expression) for expression in FINDS]
            (parent,) = answers(group, "evaluate", "os.getppid()")
            assert (parent == os.getpid()) is not fork
            launcher.stop()
    for expression, fresh, forked in zip(FINDS, found[False], found[True], strict=True):
        assert forked == fresh, expression


def test_what_was_preloaded_is_there_from_the_start(modules):
    (modules / "late_module.py").write_text("")
    (modules / "component_module.py").write_text("class Component:\n    preload = ('late_module',)\n")
    with Local.warm_up(["launcher_targets", "component_module:Component"]), Local.warm_up(["colorsys"]):
        launcher = set_up(modules)
        group = start(launcher)
        names = ("launcher_targets", "component_module", "late_module", "colorsys", "cgitb")
        assert [answers(group, "had", name) for name in names] == [[True]] * 4 + [[False]]
        launcher.stop()


@pytest.mark.slow
def test_forked_ranks_have_their_own_threads_and_random_numbers(modules):
    with Local.warm_up(["launcher_targets", "torch", "numpy.random"]):
        launcher = set_up(modules)
        for num_threads in (1, 3):
            assert answers(start(launcher, num_threads=num_threads), "num_torch_threads") == [num_threads]
        two = start(launcher, num_ranks=2)
        assert answers(two, "had", "torch") == [True, True]
        numbers = answers(two, "random_numbers")
        assert numbers[0][0] != numbers[1][0]
        assert numbers[0][1] != numbers[1][1]
        launcher.stop()


def test_an_environment_of_its_own_means_a_fresh_process(modules):
    with Local.warm_up(["launcher_targets", "colorsys"]):
        launcher = set_up(modules)
        group = start(launcher, env={"LD_BIND_NOW": "1"})
        assert answers(group, "had", "colorsys") == [False]
        assert answers(group, "evaluate", "os.environ['LD_BIND_NOW']") == ["1"]
        launcher.stop()


UNFIT = {
    "an import has started 1 threads": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
    "an import has loaded the CUDA driver": "import mmap\n"
    "with open(__file__.replace('unfit.py', 'libcuda.so.1'), 'w+b') as file:\n"
    "    file.truncate(4096)\n"
    "    held = mmap.mmap(file.fileno(), 4096)\n",
}


@pytest.mark.parametrize("reason", UNFIT)
def test_after_an_import_that_forbids_forking_processes_are_fresh(modules, reason):
    (modules / "unfit.py").write_text(UNFIT[reason])
    with Local.warm_up(["launcher_targets", "unfit"]):
        launcher = set_up(modules)
        group = start(launcher, num_threads=1)
        assert answers(group, "had", "unfit") == [False]
        assert answers(group, "evaluate", "os.environ['OMP_NUM_THREADS']") == ["1"]
        launcher.stop()
    assert f"policy-0 is a fresh interpreter: {reason}" in (modules / "logs" / "policy-0.log").read_text()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise ValueError('broken')", "ValueError: broken"),
        ("import sys; sys.exit('no licence')", "no licence"),
    ],
)
def test_a_module_that_fails_to_import_fails_only_who_needs_it(modules, body, told):
    (modules / "broken_module.py").write_text(body)
    with Local.warm_up(["broken_module", "launcher_targets:NoSuchClass", "launcher_targets"]):
        launcher = set_up(modules)
        assert answers(start(launcher), "had", "launcher_targets") == [True]
        broken = launcher.start_group(GroupSpec(name="critic", target="broken_module:Rank"))
        error = broken.call("had", timeout_s=60)[0].exception(60)
        assert isinstance(error, ProcessDied)
        launcher.stop()
    assert told in str(error)
    assert told in (modules / "logs" / "fork-server.log").read_text()


def test_processes_end_with_their_fork_server_and_say_so(modules):
    deaths = queue.SimpleQueue()
    with Local.warm_up(["launcher_targets"]):
        launcher = set_up(modules, deaths.put)
        group = start(launcher)
        (pid,) = answers(group, "evaluate", "os.getpid()")
        fork_server().kill()
        death = deaths.get(timeout=60)
        assert (death.name, death.exit_code) == ("policy", -9)
        assert "its fork server has ended" in death.reason
        assert isinstance(group.call("had", timeout_s=60)[0].exception(60), ProcessDied)
        late = start(launcher)
        assert isinstance(late.call("had", timeout_s=60)[0].exception(60), ProcessDied)
        assert "never began" in deaths.get(timeout=60).reason
        launcher.stop()
    assert await_gone([pid]) == []


def test_a_process_that_cannot_be_forked_is_a_death_and_others_live_on(modules):
    (modules / "unforkable.py").write_text(
        "import os\nfork, times = os.fork, iter(range(9))\n"
        "def failing():\n"
        "    if next(times) == 1:\n        raise BlockingIOError('too many processes')\n    return fork()\n"
        "os.fork = failing\n"
    )
    deaths = queue.SimpleQueue()
    with Local.warm_up(["launcher_targets", "unforkable"]):
        launcher = set_up(modules, deaths.put)
        first, second, third = start(launcher), start(launcher), start(launcher)
        assert isinstance(second.call("had", timeout_s=60)[0].exception(60), ProcessDied)
        assert "could not fork" in deaths.get(timeout=60).reason
        assert answers(first, "had", "unforkable") == answers(third, "had", "unforkable") == [True]
        assert "too many processes" in (modules / "logs" / "fork-server.log").read_text()
        launcher.stop()
    assert deaths.empty()


def test_a_process_that_is_given_up_before_it_begins_is_ended(modules):
    (modules / "slow.py").write_text("import time; time.sleep(0.5)")
    with Local.warm_up(["launcher_targets", "slow"]):
        launcher = set_up(modules)
        start(launcher).ranks[0].child.kill()
        (pid,) = answers(start(launcher), "evaluate", "os.getpid()")
        assert await_gone([child.pid for child in fork_server().children() if child.pid != pid]) == []
        launcher.stop()


def test_stopping_waits_for_no_import(modules):
    (modules / "endless.py").write_text("import time; time.sleep(600)")
    before = set(psutil.Process().children(recursive=True))
    with Local.warm_up(["endless"]):
        launcher = set_up(modules)
        call = start(launcher, num_ranks=2).call("had", timeout_s=600)
        launcher.stop()
    assert all(isinstance(future.exception(60), ProcessDied) for future in call)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_warm_up_without_a_run_leaves_nothing(modules):
    before = set(psutil.Process().children(recursive=True))
    with Local.warm_up(["launcher_targets"]):
        assert set(psutil.Process().children(recursive=True)) > before
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_controller_that_is_killed_while_it_warms_up_leaves_nothing(modules):
    (modules / "endless.py").write_text("import time; time.sleep(600)")
    script = (
        "import os, psutil, signal; from areal_lit_launchers.local import Local; "
        "context = Local.warm_up(['endless']); context.__enter__(); "
        "print(*(child.pid for child in psutil.Process().children()), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=modules, capture_output=True, text=True, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2  # the fork server and its reaper
    assert await_gone(pids) == []


def test_a_set_up_that_fails_leaves_nothing_and_may_be_tried_again(modules):
    before = set(psutil.Process().children(recursive=True))
    (modules / "logs" / "fork-server.log").mkdir(parents=True)
    with Local.warm_up(["launcher_targets"]):
        launcher = Local()
        with pytest.raises(IsADirectoryError, match="fork-server"):
            launcher.setup(modules / "logs", print, Logs())
        assert launcher.scratch is None
        assert len(set(psutil.Process().children(recursive=True)) - before) == 2  # the fork server and its reaper
        launcher.setup(modules / "others", print, Logs())
        assert answers(start(launcher), "had", "launcher_targets") == [True]
        launcher.stop()


def open_files():
    """What this process has open, as the system calls it."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_a_second_run_is_told_where_its_fork_server_writes(modules):
    deaths = queue.SimpleQueue()
    before = open_files()
    with Local.warm_up(["launcher_targets"]):
        for run in ("first", "second"):
            launcher = set_up(modules / run, deaths.put)
            assert answers(start(launcher), "had", "launcher_targets") == [True]
            if run == "second":
                fork_server().kill()
                assert f"see {modules}/first/logs/fork-server.log" in deaths.get(timeout=60).reason
            launcher.stop()
    assert not (modules / "second/logs/fork-server.log").exists()
    deadline = time.monotonic() + END_TIMEOUT_S
    while (left := open_files() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == set()
