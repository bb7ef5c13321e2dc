from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodes import threads
from nodes.threads import Cores


@pytest.mark.parametrize(
    ("cores", "num_threads"),
    [
        (Cores(1, 1), 1),
        (Cores(2, 2), 1),
        (Cores(8, 8), 7),
        (Cores(16, 8), 7),
        (Cores(8, 8, quota=4.0), 3),
        (Cores(8, 8, quota=2.5), 1),
        (Cores(8, 8, quota=0.5), 1),
        (Cores(4, 4, quota=64.0), 3),
    ],
)
def test_one_core_is_left_to_the_threads_that_talk(cores: Cores, num_threads: int) -> None:
    assert cores.num_threads == num_threads


def test_it_says_what_the_number_comes_from() -> None:
    assert Cores(1, 1).words(1) == "1 core may be used"
    assert Cores(16, 8, quota=4.0).words(3) == "8 cores (16 CPUs), 4 of them by its control group may be used"


def test_more_threads_than_cores_are_warned_of() -> None:
    assert Cores(4, 4).words(8) == "4 cores may be used: more than 3 may be far slower, see --threads"


def test_it_counts_what_this_process_may_use() -> None:
    cores = threads.usable_cores()
    assert 1 <= cores.num_cores <= cores.num_cpus == len(os.sched_getaffinity(0))


def test_two_cpus_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")

    assert threads._num_cores(tmp_path, range(4)) == 2
    assert threads._num_cores(tmp_path, [0, 1, 9]) == 3


def test_the_tightest_limit_of_its_control_groups_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/user.slice/node"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/node\n")
    assert threads._quota(tmp_path) is None

    (group / "cpu.max").write_text("max 100000\n")
    assert threads._quota(tmp_path) is None
    (group / "cpu.max").write_text("350000 100000\n")
    (group.parent / "cpu.max").write_text("200000 100000\n")
    assert threads._quota(tmp_path) == 2.0


def test_limits_of_version_1_count_too(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/cpu"
    group.mkdir(parents=True)
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert threads._quota(tmp_path) is None

    (group / "cpu.cfs_quota_us").write_text("150000\n")
    assert threads._quota(tmp_path) == 1.5
