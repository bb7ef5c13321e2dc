"""How many threads compute: as many as there are cores that this process may use, but one. Linux.

Threads that compute meet after every operation, so that one that doesn't get its core makes all of them wait: two on
two busy cores were ten times slower than one. One core is left to the threads that talk.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cores:
    """What this process may use: CPUs by its affinity, the cores they are of, and its control group's share of time."""

    num_cpus: int
    num_cores: int  # two CPUs of one core share what computes
    quota: float | None = None  # CPUs' worth of time; None: no limit

    @property
    def num_threads(self) -> int:
        usable = self.num_cores if self.quota is None else min(self.num_cores, int(self.quota))
        return max(1, usable - 1)

    def words(self, num_threads: int) -> str:
        """For the log, beside the number of threads that was chosen or asked for."""
        cores = f"{self.num_cores} core{'' if self.num_cores == 1 else 's'}"
        if self.num_cpus != self.num_cores:
            cores += f" ({self.num_cpus} CPUs)"
        if self.quota is not None:
            cores += f", {self.quota:g} of them by its control group"
        if num_threads > self.num_threads and num_threads > 1:
            return f"{cores} may be used: more than {self.num_threads} may be far slower, see --threads"
        return f"{cores} may be used"


def usable_cores(root: Path = Path("/")) -> Cores:
    cpus = os.sched_getaffinity(0)
    return Cores(len(cpus), _num_cores(root / "sys/devices/system/cpu", cpus), _quota(root))


def _num_cores(folder: Path, cpus: Collection[int]) -> int:
    """Distinct cores that these CPUs are of; where that can't be known, each is its own."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((folder / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(f"cpu{cpu}")
    return len(cores)


def _quota(root: Path) -> float | None:
    """The least of the limits from this process's control group up to the root of those it can see; version 2, or 1."""
    quotas = [_quota_of(folder) for folder in _groups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(root: Path) -> list[Path]:
    """Folders that may hold a limit: a container sees its own group as the root."""
    base = root / "sys/fs/cgroup"
    folders = [base, base / "cpu", base / "cpu,cpuacct"]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        kind, _, path = line.partition(":")[2].partition(":")
        if kind == "" or "cpu" in kind.split(","):
            group = (base / kind if kind else base) / path.lstrip("/")
            folders += [folder for folder in (group, *group.parents) if folder.is_relative_to(base)]
    return folders


def _quota_of(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        return int(limit) / int(period) if int(limit) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None
