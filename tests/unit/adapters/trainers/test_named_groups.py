"""A configured unit, job or cgroup names the group that its manager has made, and none of that name elsewhere."""

from __future__ import annotations

import pytest

from governor.adapters.trainers.named_groups import named_group

MANAGER = "/user.slice/user-1000.slice/user@1000.service"

UNITS = {  # Path of a process -> is it in train.service, as root's governor and as that of uid 1000 see it.
    "/system.slice/train.service": (True, True),
    "/system.slice/train.service/deeper/still": (True, True),
    "/machines.slice/machines-a.slice/train.service": (True, True),
    "/docker-box/system.slice/train.service": (True, True),
    f"{MANAGER}/app.slice/train.service": (False, True),
    "/user.slice/user-1003.slice/user@1003.service/app.slice/train.service": (False, False),
    "/user.slice/user-1003.slice/train.service": (False, False),
    "/system.slice/other.service/train.service": (False, False),
    "/system.slice/box.scope/system.slice/train.service": (False, False),
    "/system.slice/retrain.service": (False, False),
}
JOBS = {
    "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0": True,
    "/system.slice/node1_slurmstepd.scope/job_7/step_batch": True,
    "/slurm/uid_1000/job_7/step_0": True,
    "/slurm_node1/uid_1000/job_7": True,
    "/job_7/step_0": False,
    "/system.slice/slurmstepd.scope/job_77/step_0": False,
    "/system.slice/slurmstepd.scope/job_8/step_0/job_7": False,
    "/user.slice/user-1003.slice/user@1003.service/job_7": False,
    "/user.slice/user-1003.slice/user@1003.service/slurm/job_7": False,
    "/system.slice/other.service/slurm/uid_1003/job_7": False,
}


@pytest.mark.parametrize("path", UNITS)
def test_a_unit_is_where_its_manager_puts_it(path: str) -> None:
    assert tuple(named_group(path, "unit", "train.service", uid) is not None for uid in (0, 1000)) == UNITS[path]


@pytest.mark.parametrize("path", JOBS)
def test_a_job_is_where_slurm_puts_it(path: str) -> None:
    assert (named_group(path, "job", "7", 0) is not None) == JOBS[path]


@pytest.mark.parametrize("unit", ["session-3.scope", "user@1003.service"])
def test_a_login_may_be_named_as_a_unit(unit: str) -> None:
    login = f"/user.slice/user-1003.slice/{unit}"
    assert named_group(f"{login}/app.slice/x.service", "unit", unit, 0) == login
    assert named_group(f"/user.slice/user-1003.slice/user@1003.service/{unit}", "unit", unit, 0) in (None, login)


@pytest.mark.parametrize("given", ["/a/b", "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/unified/a/b", "/a/b/"])
def test_a_cgroup_is_a_path_from_the_top(given: str) -> None:
    assert named_group("/a/b/c", "cgroup", given, 0) == "/a/b"
    assert named_group("/a/bc", "cgroup", given, 0) is None
    assert named_group("/user.slice/a/b", "cgroup", given, 0) is None
