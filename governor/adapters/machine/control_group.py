"""A control group (v2) of our own for one command: whatever the command starts stays in it, whatever it drops.

The group is a child of the one in which we are: the limits and the end of a unit, a container or a
session hold for it as before. We ourselves stay where we are. Where the kernel or the machine's owner does not let us,
there is no group, and a halt knows the processes as it did without one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from governor.adapters.machine.mounts import Mount, mounts

PREFIX: Final = "costgov-"
ATTEMPTS: Final = 3
# Those that ended runs have left, removed by one start; and how deep a command may have nested its own below.
SWEPT_MAX: Final = 100
DEPTH_MAX: Final = 32
# slurmstepd counts and signals the processes of its groups by name, and removes each by one rmdir.
_COUNTED_BY_OTHERS: Final = ("/slurm", "/job_")
_FILE_BYTES_MAX: Final = 64 * 1024


class Place(NamedTuple):
    """A control group: its path as /proc/PID/cgroup shows it, and its directory."""

    path: str
    directory: Path


@dataclass(slots=True)
class OwnGroup:
    """The group of one command. As long as we live we hold a lock on it, so that nobody takes it for a leftover."""

    path: str  # As /proc/PID/cgroup shows it.
    directory: Path
    _fd: int  # Of the directory; locked.
    _procs: int  # Of cgroup.procs, opened with our rights.

    def join(self) -> None:
        """Move the calling process into the group. For the command's process, between fork and exec: it must not raise.

        It is in no group of ours afterwards where the kernel refuses that.
        """
        with contextlib.suppress(OSError):
            os.write(self._procs, b"0")

    def holds(self, pid: int) -> bool:
        """Whether this process is in the group. True for its zombie too."""
        return f"{_path_of(pid)}/".startswith(f"{self.path}/")

    @property
    def is_populated(self) -> bool:
        """Whether any process lives in the group or below it. True also while that cannot be read."""
        try:
            return _events(self._fd).get("populated") != "0"
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENODEV)  # Else it was removed, so it was empty.

    def kill(self) -> bool:
        """End all that is in the group, forks under way too. False where the kernel (before 5.14) cannot."""
        try:
            fd = os.open("cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return False
        try:
            return os.write(fd, b"1") == 1
        except OSError:
            return False
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the group if it is empty. What lives on keeps it, and a later start removes it."""
        for fd in (self._procs, self._fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        with contextlib.suppress(OSError):
            _remove_tree(self.directory)


def make_group(name: str, place: Place | None = None) -> OwnGroup | None:
    """Make a group for the command of this name, below `place` (by default where we are). None where we may not."""
    place = place or own_place()
    if place is None:
        return None
    sweep(place.directory)
    for _ in range(ATTEMPTS):
        try:
            made = _make(place, f"{PREFIX}{name}-{secrets.token_hex(4)}")
        except OSError:
            return None
        if made is not None:
            return made
    return None


def left_group(path: str) -> OwnGroup | None:
    """The group that a killed one of us has made for its command. None where it is not to be had, or we are in it."""
    if not path.rsplit("/", 1)[-1].startswith(PREFIX) or f"{_path_of(os.getpid())}/".startswith(f"{path}/"):
        return None
    for mount in mounts():
        if mount.kind != "cgroup2" or not path.startswith(mount.root):
            continue
        directory = Path(mount.place + path.removeprefix(mount.root.rstrip("/")))
        with contextlib.suppress(OSError):
            fd = _locked(directory)
            try:
                return OwnGroup(path, directory, fd, os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd))
            except OSError:
                os.close(fd)
    return None


def own_place() -> Place | None:
    """The control group in which we are. None without a version 2, and where somebody counts on finding us in it."""
    path = _path_of(os.getpid())
    if path is None or path.startswith("/..") or any(part in f"{path}/" for part in _COUNTED_BY_OTHERS):
        return None
    try:
        for mount in mounts():
            if mount.kind != "cgroup2":
                continue
            directory = Path(mount.place + path.removeprefix(mount.root.rstrip("/")))
            is_shown = path.startswith(mount.root)
            # The path may mean another directory where namespaces are nested in an unusual way.
            if is_shown and str(os.getpid()) in (directory / "cgroup.procs").read_text().split():
                return Place(path, directory)
    except (OSError, ValueError):
        pass
    return None


def group_mount() -> Mount | None:
    """Where control groups of version 2 are shown."""
    try:
        return next((mount for mount in mounts() if mount.kind == "cgroup2"), None)
    except OSError:
        return None


def cores_granted(path: str, mount: Mount) -> float | None:
    """How many cores at once a group may use, by its own limit and those above it (cpu.max). None: no limit is seen."""
    directory, root = Path(mount.place), mount.root.rstrip("/")
    if not f"{path}/".startswith(f"{root}/") or ".." in path.split("/"):
        return None
    found = []
    for name in ["", *path.removeprefix(root).strip("/").split("/")][: DEPTH_MAX + 1]:
        directory = directory / name
        try:
            with open(directory / "cpu.max", "rb") as file:
                quota, period = file.read(_FILE_BYTES_MAX).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit() and period.isdigit() and 0 < len(quota) <= 20 and len(period) <= 20 and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def sweep(parent: Path) -> None:
    """Remove the empty groups of those who ended without removing them. Never raises."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = (Path(entry.path) for entry in entries if entry.name.startswith(PREFIX) and entry.is_dir())
        for _, directory in zip(range(SWEPT_MAX), found, strict=False):
            with contextlib.suppress(OSError):
                fd = _locked(directory)
                try:
                    _remove_tree(directory)
                finally:
                    os.close(fd)


def _make(place: Place, name: str) -> OwnGroup | None:
    """Returns None when somebody swept it before we held it."""
    directory = place.directory / name
    directory.mkdir(mode=0o755)
    try:
        fd = _locked(directory)
    except (BlockingIOError, FileNotFoundError):
        return None
    try:
        procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
    except OSError as error:
        os.close(fd)
        with contextlib.suppress(OSError):
            directory.rmdir()
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return None
        raise
    return OwnGroup(f"{place.path.rstrip('/')}/{name}", directory, fd, procs)


def _locked(directory: Path) -> int:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove_tree(directory: Path) -> None:
    """Remove a group and those below it. OSError where a process lives in one; nothing else can be removed here."""
    if "populated 1" in (directory / "cgroup.events").read_text():
        raise OSError(errno.EBUSY, "populated")
    found = [directory]
    for _ in range(DEPTH_MAX):
        below = [Path(e.path) for one in found for e in os.scandir(one) if e.is_dir(follow_symlinks=False)]
        below = [one for one in below if one not in found]
        if not below:
            break
        found += below
    for one in reversed(found):
        one.rmdir()


def _path_of(pid: int) -> str | None:
    """The unified path of a process. None where there is none."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return unified_path(file.read(_FILE_BYTES_MAX))
    except OSError:
        return None


def unified_path(raw: bytes) -> str | None:
    """Of /proc/PID/cgroup. None where there is none of version 2."""
    lines = raw.decode("utf-8", "surrogateescape").splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


def _events(directory: int) -> dict[str, str]:
    fd = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        words = os.read(fd, _FILE_BYTES_MAX).decode("ascii", "replace").split()
    finally:
        os.close(fd)
    return dict(zip(words[::2], words[1::2], strict=False))
