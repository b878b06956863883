"""What the machine holds: cores, quotas and memory, read from files of its own making."""

from __future__ import annotations

import pytest

from rollmesh.fleet.machine import (
    available_bytes,
    cpu_quota,
    default_workers,
    machine_workers,
)

GB = 10**9


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def meminfo(root, available):
    write(
        root,
        "proc/meminfo",
        f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {available // 1024} kB",
    )


def test_this_machine_holds_one_at_least():
    assert default_workers() >= 1
    assert machine_workers()[1]


def test_where_nothing_can_be_read_cores_are_all_that_counts(tmp_path):
    assert machine_workers(cores=6, root=tmp_path) == (6, "6 cores")
    assert machine_workers(cores=1, root=tmp_path) == (1, "1 core")
    assert cpu_quota(tmp_path) is None
    assert available_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("max 100000", None),
        ("1 0", None),
        ("150000 100000", 1.5),
        ("20000 100000", 0.2),
        ("nonsense", None),
    ],
)
def test_a_quota_of_v2_is_read(tmp_path, told, wanted):
    write(tmp_path, "proc/self/cgroup", "0::/job/mine")
    write(tmp_path, "sys/fs/cgroup/job/mine/cpu.max", told)
    assert cpu_quota(tmp_path) == wanted


def test_the_smallest_quota_on_the_way_up_counts(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/job/mine")
    write(tmp_path, "sys/fs/cgroup/job/mine/cpu.max", "800000 100000")
    write(tmp_path, "sys/fs/cgroup/job/cpu.max", "300000 100000")
    assert machine_workers(cores=16, root=tmp_path) == (3, "a quota of 3 of 16 cores")
    assert machine_workers(cores=2, root=tmp_path) == (2, "2 cores")


def test_a_fraction_of_a_core_holds_a_worker(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "20000 100000")
    assert machine_workers(cores=4, root=tmp_path) == (1, "a quota of 0.2 of 4 cores")


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_a_quota_of_v1_is_read_where_the_path_is_the_hosts(tmp_path, folder):
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc")
    write(tmp_path, f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us", "200000")
    write(tmp_path, f"sys/fs/cgroup/{folder}/cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path) == 2.0


def test_a_quota_of_v1_that_is_none_is_none(tmp_path):
    write(tmp_path, "proc/self/cgroup", "5:cpu:/")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path) is None


def test_memory_that_is_available_bounds_the_number(tmp_path):
    meminfo(tmp_path, 2 * GB)
    assert machine_workers(cores=16, root=tmp_path) == (
        5,
        "2.0 GB of memory available, 400 MB a worker",
    )
    assert machine_workers(cores=16, worker_bytes=GB, root=tmp_path)[0] == 2
    assert machine_workers(cores=3, root=tmp_path) == (3, "3 cores")


def test_hardly_any_memory_still_holds_one(tmp_path):
    meminfo(tmp_path, GB // 10)
    assert machine_workers(cores=16, root=tmp_path)[0] == 1


def test_a_containers_limit_bounds_it_and_what_can_be_reclaimed_is_free(tmp_path):
    meminfo(tmp_path, 64 * GB)
    write(tmp_path, "proc/self/cgroup", "0::/job")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", 4 * GB)
    write(tmp_path, "sys/fs/cgroup/job/memory.current", 3 * GB)
    write(tmp_path, "sys/fs/cgroup/job/memory.stat", f"anon 1\nfile 2\ninactive_file {GB}")
    assert available_bytes(tmp_path) == 2 * GB


def test_a_container_without_a_limit_bounds_nothing(tmp_path):
    meminfo(tmp_path, 64 * GB)
    write(tmp_path, "proc/self/cgroup", "4:memory:/job\n0::/")
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", 9223372036854771712)
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", GB)
    write(tmp_path, "sys/fs/cgroup/memory.max", "max")
    assert available_bytes(tmp_path) == 64 * GB // 1024 * 1024


def test_a_limit_of_v1_bounds_it(tmp_path):
    write(tmp_path, "proc/self/cgroup", "4:memory:/job")
    folder = "sys/fs/cgroup/memory/job"
    write(tmp_path, f"{folder}/memory.limit_in_bytes", 2 * GB)
    write(tmp_path, f"{folder}/memory.usage_in_bytes", 3 * GB)
    write(tmp_path, f"{folder}/memory.stat", f"cache 5\ntotal_inactive_file {2 * GB}")
    assert available_bytes(tmp_path) == GB


def test_more_used_than_the_limit_leaves_nothing(tmp_path):
    write(tmp_path, "proc/self/cgroup", "4:memory:/")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", GB)
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", 2 * GB)
    assert available_bytes(tmp_path) == 0
    assert machine_workers(cores=8, root=tmp_path)[0] == 1
