"""Which control group a configured unit, job or cgroup names: the one that systemd, Slurm or root has made.

A name alone says nothing. Every user's own systemd has units of any name, and whoever was given a part of the tree
makes directories of any name in it. So the name counts at the place where its manager puts it, and only where nobody
but root and our own user may have made the directory.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from governor.adapters.machine.mounts import mounts
from governor.core.base.identity import ProcessFacts

# Where the hierarchies are mounted: a configured cgroup may be given as a directory, or as the kernel shows it.
_MOUNTED: Final = ("/sys/fs/cgroup/unified/", "/sys/fs/cgroup/systemd/", "/sys/fs/cgroup/")
_OF_USER: Final = re.compile(r"user-([0-9]+)\.slice|user@([0-9]+)\.service")
# In a user's slice, systemd itself makes the login sessions and the user's manager. All below those is the user's.
_OF_LOGIN: Final = re.compile(r"session-\w+\.scope|user@[0-9]+\.service|user-runtime-dir@[0-9]+\.service")
# slurmstepd.scope, with a node's name before it where a machine has several; version 1: slurm/uid_1000/job_1.
_OF_SLURM: Final = re.compile(r"slurm(_.+)?|(.+_)?slurmstepd\.scope")
_SLURM_USER: Final = re.compile(r"uid_[0-9]+")

Table = Mapping[int, ProcessFacts]


def named_group(path: str, how: str, name: str, uid: int) -> str | None:
    """Return the control group above or at `path` that is meant. `uid`: our own; its user manager is ours."""
    parts = path.strip("/").split("/")
    if how == "cgroup":
        root = next((root for root in _MOUNTED if f"{name}/".startswith(root)), "/")
        wanted = f"{name}/".removeprefix(root).strip("/").split("/")
        return "/" + "/".join(wanted) if parts[: len(wanted)] == wanted and wanted != [""] else None
    wanted_part = f"job_{name}" if how == "job" else name
    for position, part in enumerate(parts):
        if part != wanted_part:
            continue
        above = parts[:position]
        if how == "job":
            above = above[:-1] if above and _SLURM_USER.fullmatch(above[-1]) else above
            if not above or _OF_SLURM.fullmatch(above[-1]) is None:
                continue
            above = above[:-1]
        is_login = _OF_LOGIN.fullmatch(part) is not None
        if all(_is_managers(one, uid, is_login=is_login and one == above[-1]) for one in above):
            return "/" + "/".join(parts[: position + 1])
    return None


def _is_managers(part: str, uid: int, *, is_login: bool) -> bool:
    """Whether below this only a manager of units makes groups: nothing that was given to a command or a user."""
    of_user = _OF_USER.fullmatch(part)
    if of_user is not None:
        return int(of_user[1] or of_user[2]) == uid or (is_login and of_user[1] is not None)
    return not part.endswith((".service", ".scope"))


def groups_made_by(uid: int) -> Callable[[str], bool]:
    """Return a question: can only root and this user have made the group of this path?

    True as well where no hierarchy is mounted that shows it.
    """
    try:
        shown = [m for m in mounts() if m.kind == "cgroup2" or (m.kind == "cgroup" and "name=systemd" in m.options)]
    except OSError:
        shown = []

    def answer(path: str) -> bool:
        for mount in shown:
            root, top = mount.root.rstrip("/"), Path(mount.place)
            directory = top / path.removeprefix(root).lstrip("/")
            if path.startswith(f"{root}/") and directory.is_dir():
                above = (one for one in directory.parents if one == top or top in one.parents)
                if not all(_is_closed(one, uid) for one in above):
                    return False
        return True

    return answer


def _is_closed(directory: Path, uid: int) -> bool:
    """Whether nobody but root and this user may make a directory in it. One that is gone holds nobody's process."""
    try:
        facts = os.stat(directory)
    except OSError:
        return False
    return facts.st_uid in (0, uid) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@dataclass(frozen=True, slots=True)
class NamedProcesses:
    """The processes in the control group that an entry's `unit`, `job` or `cgroup` names, or below it."""

    how: str
    name: str

    def inside(self, table: Table) -> list[ProcessFacts]:
        uid = os.geteuid()
        answer = groups_made_by(uid) if self.how != "cgroup" else None
        groups: dict[str, bool] = {}
        for path in {facts.cgroup for facts in table.values()}:
            group = named_group(path, self.how, self.name, uid)
            groups[path] = group is not None and (answer is None or answer(group))
        return [facts for facts in table.values() if groups[facts.cgroup]]
