"""Faults of a machine, planted in a file system of its own or in this process: what ``doctor`` finds and advises."""

from __future__ import annotations

import fcntl
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_lit.cli.doctor import lines
from areal_lit.cli.main import main
from areal_lit.diagnosis import Examination, Finding, examine
from areal_lit.diagnosis.directory import file_system
from areal_lit.diagnosis.machine import cpu_quota, memory_limit, memory_use
from areal_lit.scratch import Scratch

CHECKS = {name: f"machine:{name}" for name in ("cores", "memory", "shared_memory", "open_files", "ports")}


def look(check: str, **examination: object) -> list[Finding]:
    path = {**CHECKS, "gpus": "gpus:gpus", "directory": "directory:directory"}[check]
    return examine(Examination(**examination), {check: path})  # type: ignore[arg-type]


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A machine of 64 GiB and a GPU; a group with half a core within one with two; 1 GiB of memory, most of it used."""
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/outer/inner\n",
            "proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {32 * 2**20} kB\n",
            "proc/self/mounts": f"disk / ext4 rw 0 0\nserver:/runs {tmp_path}/mnt/my\\040runs nfs4 rw 0 0\n",
            "sys/fs/cgroup/outer/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/outer/inner/memory.max": f"{2**30}\n",
            "sys/fs/cgroup/outer/inner/memory.current": f"{2**30}\n",
            "sys/fs/cgroup/outer/inner/memory.stat": f"anon {2**29}\ninactive_file {2**20}\n",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
        },
    )
    return tmp_path


def test_the_tightest_limit_of_all_groups_around_counts(container: Path) -> None:
    assert cpu_quota(container) == 0.5
    assert (memory_limit(container), memory_use(container)) == (2**30, 2**30 - 2**20)


def test_groups_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
            "proc/meminfo": "MemTotal: 4194304 kB\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (1.5, 2**30)


def test_a_quota_that_openmp_does_not_know_is_told(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (finding,) = look("cores", root=container)
    assert finding.level == "warning"
    assert "0.5 of" in finding.found
    assert finding.advice == "export OMP_NUM_THREADS=1"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    (finding,) = look("cores", root=container)
    assert "OMP_NUM_THREADS 4 is more than those" in finding.found


def test_memory_is_what_the_container_has_left(container: Path) -> None:
    (finding,) = look("memory", root=container)
    assert (finding.level, finding.found) == ("warning", "0.0 GiB free, limit of the container 1.0 GiB")


def test_shared_memory_is_looked_through_for_weights_of_dead_runs(container: Path) -> None:
    shared = container / "dev/shm"
    write(shared, **{"areal-lit-scratch-dead/.scratch-lock": "", "areal-lit-a-run/.lock": "", "of-others/.lock": ""})
    living = Scratch(shared / "elsewhere")
    living.path.rename(shared / living.path.name)
    *_, left = look("shared_memory", root=container)
    living.close()
    assert left.found == "1 directories of runs that are gone"
    assert left.advice == f"rm -r {shared}/areal-lit-scratch-dead"


@pytest.fixture
def few_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("few_files")
def test_a_low_limit_on_open_files_is_an_error_with_the_command() -> None:
    (finding,) = look("open_files")
    assert finding.level == "error"
    assert finding.found.startswith("limit 200 ")
    assert finding.advice.startswith("ulimit -n ")


def test_a_limit_that_only_the_machine_can_raise_is_told_as_that() -> None:
    lowered = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "from areal_lit.diagnosis import Examination, examine\n"
        "print(examine(Examination(), {'open_files': 'machine:open_files'})[0].advice)"
    )
    done = subprocess.run([sys.executable, "-c", lowered], capture_output=True, text=True, timeout=60, check=True)
    assert "limits.conf" in done.stdout, done.stderr


def test_the_longest_name_of_what_was_looked_at_stands_apart_from_what_was_found() -> None:
    told = lines(Finding(level="error", subject="reward of_a_long_name", found="cannot be used", advice=""))
    assert told == ["ERROR   reward of_a_long_name cannot be used"]


def test_ports_work_here() -> None:
    assert [finding.level for finding in look("ports")] == ["ok"]


@pytest.mark.parametrize(("visible", "level"), [(None, "ok"), ("0", "ok"), ("", "warning"), ("0,3", "warning")])
def test_hidden_gpus_are_told(
    visible: str | None, level: str, container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (finding,) = look("gpus", root=container)
    assert finding.level == level
    assert finding.found.startswith("1 on this machine")


def test_a_file_system_is_that_of_the_innermost_mount(container: Path) -> None:
    assert file_system(container / "mnt/my runs/first", container) == "nfs4"
    assert file_system(container / "mnt/other", container) == "ext4"


def test_a_run_directory_on_a_network_is_told(container: Path) -> None:
    (container / "mnt/my runs").mkdir(parents=True)
    found = look("directory", root=container, runs_dir=container / "mnt/my runs")
    assert any("nfs4" in finding.found for finding in found)


def test_a_run_directory_that_cannot_be_written_is_an_error() -> None:
    (finding,) = look("directory", runs_dir=Path("/proc/runs"))
    assert finding.level == "error"
    assert "/proc cannot be written to" in finding.found
    assert "--runs_dir DIR" in finding.advice


def test_leftovers_are_told_and_those_of_a_run_that_goes_on_are_not(tmp_path: Path) -> None:
    write(tmp_path, **{f"runs/{name}/.lock": "" for name in ("dead", "alive", "dead.replaced")})
    for name in ("dead", "alive"):
        (tmp_path / "runs" / name / "checkpoints" / ".partial-00000004").mkdir(parents=True)
    with (tmp_path / "runs/alive/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        *_, left = look("directory", runs_dir=tmp_path / "runs")
    assert left.found.startswith("2 leftovers")
    runs = tmp_path / "runs"
    assert left.advice == f"rm -r {runs}/dead/checkpoints/.partial-00000004 {runs}/dead.replaced"


def test_the_command_tells_every_check_and_fails_on_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, **{"torch.py": "raise ImportError('planted')", "transformers.py": "__version__ = '5'"})
    assert main(["doctor", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert {tuple(finding) for finding in findings} == {("level", "subject", "found", "advice")}
    subjects = {finding["subject"] for finding in findings}
    assert {"python", "torch", "transformers", "run directory", "cores", "memory", "open files", "ports"} <= subjects
    assert [finding for finding in findings if "this check failed" in finding["found"]] == []
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "ERROR   torch" in told
    assert "-> pip install --force-reinstall torch" in told
    with pytest.raises(SystemExit):
        main(["doctor", "--max_steps", "3"])
