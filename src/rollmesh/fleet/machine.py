"""How many worker processes this machine holds (layer 7).

A worker wants a core and some memory. Cores are those that this process may run on, and no more
than its container's quota; memory is what is available now, here and under the container's limit.
Linux tells all of that in files (`/proc`, cgroup v2 and v1); what cannot be read is no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rollmesh.transport.spin import usable_cores

WORKER_BYTES = 400 * 10**6
"""What a worker is guessed to need: Python, numpy, and a simulator of moderate size."""

_V1_UNLIMITED = 2**60
"""Cgroup v1 says a huge number where there is no limit."""


def default_workers() -> int:
    """Return how many workers this machine holds; at least 1."""
    return machine_workers()[0]


def machine_workers(
    *, worker_bytes: int = WORKER_BYTES, cores: int | None = None, root: Path = Path("/")
) -> tuple[int, str]:
    """Return how many workers this machine holds, and what the number comes from.

    Args:
        worker_bytes: What a worker is guessed to need, in bytes.
        cores: Cores that may be used; those of this process by default.
        root: Where `proc` and `sys` are.

    Returns:
        The number, at least 1, and its reason: "4 cores".
    """
    usable = cores or usable_cores()
    most, reason = usable, f"{usable} core{'s' * (usable != 1)}"
    quota = cpu_quota(root)
    if quota is not None and round(quota) < most:
        most, reason = round(quota), f"a quota of {quota:g} of {usable} cores"
    available = available_bytes(root)
    if available is not None and available // worker_bytes < most:
        most = available // worker_bytes
        reason = (
            f"{available / 1e9:.1f} GB of memory available, {worker_bytes / 1e6:.0f} MB a worker"
        )
    return max(1, most), reason


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return how many cores this process's containers let it use, or None where they do not say."""
    quotas: list[float] = []
    for folder in _groups(root, "cpu"):
        told = _words(folder / "cpu.max")  # v2: "150000 100000", or "max 100000"
        if not told:
            told = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        numbers = [int(word) for word in told if word.isdigit()]
        if len(numbers) == len(("quota", "period")) and numbers[1]:
            quotas.append(numbers[0] / numbers[1])
    return min(quotas, default=None)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory can still be used here, or None where nobody says."""
    sizes: list[int] = []
    free = _entry(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        sizes.append(free * 1024)
    for folder in _groups(root, "memory"):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        reclaimable = _entry(folder / "memory.stat", "inactive_file")
        if limit is None:
            limit = _number(folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.usage_in_bytes")
            reclaimable = _entry(folder / "memory.stat", "total_inactive_file")
        if limit is not None and limit < _V1_UNLIMITED:
            sizes.append(max(0, limit - max(0, (used or 0) - (reclaimable or 0))))
    return min(sizes, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Return the folders of this process's groups, those around them included.

    Seen from inside a container a path may not be there; what holds it is.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        # v2 has one tree, which stands beside those of v1 where there are both
        tops = (mounts / names, mounts / controller) if names else (mounts, mounts / "unified")
        for top in dict.fromkeys(tops):
            inside = Path(path.lstrip("/"))
            yield from (top / part for part in (inside, *inside.parents) if (top / part).is_dir())


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (OSError, ValueError):
        return []


def _number(path: Path) -> int | None:
    """Return the number in a file, or None where there is none ("max")."""
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _entry(path: Path, name: str) -> int | None:
    """Return the number after a name, in a file of such lines."""
    words = _words(path)
    for place, word in enumerate(words[:-1]):
        if word == name and words[place + 1].isdigit():
            return int(words[place + 1])
    return None
