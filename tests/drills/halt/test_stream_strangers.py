"""Streams among strangers: nobody has another user's process ended, and no path holds up the watch of the others."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from governor.adapters.trainers.deciders import ANYONE, Walk
from tests.drills.halt.conftest import POLICY, SAFETY_S, Service, until_gone
from tests.drills.halt.puppet import Puppet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of two other users, and a mount")

MALLORY, ALICE, ROOT = 12345, 65534, 0
GROUP = 12399  # Of a project.
QUICK = POLICY.replace('term_grace = "1s"', 'term_grace = "200ms"').replace('kill_grace = "5s"', 'kill_grace = "1s"')
NAN = "".join(f'{{"step": {n}, "loss": {"NaN" if n == 4 else "2.0"}}}\n' for n in range(1, 5))


class House:
    """A governor with streams, and who lives there."""

    def __init__(self, public: Path) -> None:
        self.public = public
        self.governor = Service(public, policy=QUICK)
        self.processes: list[subprocess.Popen[bytes]] = []

    def process(self, uid: int) -> subprocess.Popen[bytes]:
        argv = ["setpriv", "--clear-groups", f"--regid={uid}", f"--reuid={uid}", "sleep", "3600"]
        self.processes.append(subprocess.Popen(argv))
        return self.processes[-1]

    def directory(self, name: str, uid: int) -> Path:
        directory = self.public / name
        directory.mkdir()
        os.chown(directory, uid, uid)
        return directory

    def file(self, path: Path, text: str, uid: int) -> Path:
        path.write_text(text)
        os.chown(path, uid, uid)
        return path

    def stream(self, directory: Path, named: str | None = None) -> None:
        named = f'pidfile = "{directory}/pid"' if named is None else named
        with self.governor.config.open("a") as config:
            config.write(f'[[jsonl]]\npath = "{directory}/log"\nrun = "{directory.name}"\n{named}\n')

    def honest(self) -> subprocess.Popen[bytes]:
        """A user's own run, whose halt shows that the governor watches."""
        process, directory = self.process(ALICE), self.directory("honest", ALICE)
        self.file(directory / "pid", str(process.pid), ALICE)
        self.file(directory / "log", "", ALICE)
        self.stream(directory)
        return process

    def nan(self, name: str) -> None:
        with (self.public / name / "log").open("a") as log:
            log.write(NAN)

    def end(self) -> None:
        self.governor.end()
        for process in self.processes:
            process.kill()
            process.communicate(timeout=SAFETY_S)


@pytest.fixture
def house(public: Path) -> Iterator[House]:
    made = House(public)
    yield made
    made.end()


def test_nobody_has_another_users_process_ended(house: House) -> None:
    """By what stands in a pidfile, behind a link, under a second name, or by a log that is another's.

    Nor by a file of Alice's own that another member of her project may put there, or write.
    """
    honest = house.honest()
    victims = {uid: house.process(uid) for uid in (ALICE, ROOT)}
    alices = house.directory("alices", ALICE)
    pidfile = house.file(alices / "pid", str(victims[ALICE].pid), ALICE)

    for name, uid in (("of_alice", ALICE), ("of_root", ROOT)):
        house.file(house.directory(name, MALLORY) / "pid", str(victims[uid].pid), MALLORY)
    (house.directory("linked", MALLORY) / "pid").symlink_to(pidfile)
    (house.directory("twice", MALLORY) / "pid").hardlink_to(pidfile)
    # Root pairs a log with a pidfile that root's own launcher has written: whoever owns the log speaks for nobody else.
    house.file(house.directory("spoken", ROOT) / "pid", str(victims[ROOT].pid), ROOT)
    open_to_all = house.directory("open", ALICE)
    house.file(open_to_all / "pid", str(victims[ALICE].pid), ALICE).chmod(0o666)

    for name in ("project", "written"):
        house.file(house.directory(name, ALICE) / "pid", str(victims[ALICE].pid), ALICE)
    os.chown(house.public / "project", ROOT, GROUP)
    (house.public / "project").chmod(0o2775)

    strange = ("of_alice", "of_root", "linked", "twice", "spoken", "open", "project", "written")
    for name in strange:
        house.file(house.public / name / "log", "", ALICE if name in ("open", "project", "written") else MALLORY)
        house.stream(house.public / name)
    os.chown(house.public / "written" / "log", ALICE, GROUP)
    (house.public / "written" / "log").chmod(0o664)
    house.governor.start()
    governor = house.governor
    governor.until(lambda: all(governor.run(name) for name in (*strange, "honest")), "all are watched")
    for name in (*strange, "honest"):
        house.nan(name)

    def stages() -> dict[str, str]:
        return {incident["run"]: incident["halt_stage"] for incident in governor.incidents()}

    governor.until(lambda: stages() == dict.fromkeys(strange, "NEEDS_HUMAN") | {"honest": "HALTED"}, "all are halted")
    assert honest.wait(SAFETY_S) == -signal.SIGTERM
    assert [victim.poll() for victim in victims.values()] == [None, None]
    told = [line for line in governor.log_at_end().splitlines() if "stream_untrusted" in line]
    assert {name for name in strange if any(f"run={name} " in line or f'"{name}"' in line for line in told)} == {
        *strange
    }, told


def test_a_streams_name_is_not_to_be_had_by_a_hello(house: House, interpreter: str) -> None:
    """Between two launches, neither: the stranger is watched under a name of its own, and outlives the halt."""
    governor, directory = house.governor, house.directory("honest", ALICE)
    house.file(directory / "log", "", ALICE)
    house.stream(directory)
    first = house.process(ALICE)
    house.file(directory / "pid", str(first.pid), ALICE)
    governor.start()
    governor.until(lambda: governor.run("honest").get("uid") == ALICE, "the stream has its process")
    first.kill()
    first.wait(SAFETY_S)
    governor.until(lambda: governor.run("honest").get("state") == "finished", "its launch has ended")
    process = house.process(ALICE)
    prefix = ["setpriv", "--clear-groups", f"--regid={MALLORY}", f"--reuid={MALLORY}", interpreter]
    stranger = Puppet(house.public / "run" / "trainer.sock", prefix=prefix)
    try:
        stranger.hello(run="honest")
        stranger.steps(1, 3)
        governor.until(lambda: governor.step(f"honest@{MALLORY}") == 3, "the stranger is watched as itself")
        house.file(directory / "pid", str(process.pid), ALICE)
        governor.until(lambda: governor.run("honest").get("state") != "finished", "the next launch is seen")
        house.nan("honest")
        assert process.wait(SAFETY_S) == -signal.SIGTERM
        incident = governor.until_stage("HALTED")
        assert (incident["run"], [target["pid"] for target in incident["targets"]]) == ("honest", [process.pid])
        stranger.steps(4, 5)
        governor.until(lambda: governor.step(f"honest@{MALLORY}") == 5, "the stranger trains on")
    finally:
        stranger.end()


def test_a_path_that_holds_up_its_reader_holds_up_nobody_else(house: House, hung_mount: Path) -> None:
    """A FIFO in the place of each file, and a file system that does not answer: also in the place of the log."""
    honest = house.honest()
    fifo = house.directory("fifo", MALLORY)
    os.mkfifo(fifo / "pid")
    os.mkfifo(fifo / "log")
    house.stream(fifo)
    hung = house.directory("hung", MALLORY)
    (hung / "log").symlink_to(hung_mount / "log")
    house.stream(hung)
    unnamed = house.directory("unnamed", MALLORY)
    house.file(unnamed / "log", "", MALLORY)
    house.stream(unnamed, f'pidfile = "{hung_mount}/pid"')
    governor = house.governor
    governor.start()
    governor.until(lambda: governor.run("honest"), "the other run is watched")
    house.nan("honest")
    assert honest.wait(SAFETY_S) == -signal.SIGTERM
    governor.until(lambda: governor.stage("honest") == "HALTED", "the other run is halted")
    for path in (hung / "log", hung_mount / "pid"):
        governor.until_said(f"{path} has not answered for")
    assert governor.process is not None
    governor.process.terminate()
    assert governor.process.wait(SAFETY_S) == 0


def test_a_job_is_ended_and_not_what_manages_it(job: Path, house: House) -> None:
    """As Slurm has it: a step's manager is root's and in the job's control group, above the user's tasks."""
    tasks = f"setpriv --clear-groups --regid={ALICE} --reuid={ALICE} sh -c 'echo $$; exec sleep 3600'"
    script = f"echo $$ > {job}/slurm/cgroup.procs; (echo 0 > {job}/task/cgroup.procs; exec {tasks}) & wait; exec cat"
    manager = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    house.processes.append(manager)
    assert manager.stdout is not None
    task = int(manager.stdout.readline())
    beside = subprocess.Popen(["sh", "-c", f"echo $$ > {job}/task/cgroup.procs; echo up; exec sleep 3600"], stdout=-1)
    house.processes.append(beside)
    assert beside.stdout is not None
    assert beside.stdout.readline() == b"up\n"
    house.file(house.directory("job", ALICE) / "log", "", ALICE)
    house.stream(house.public / "job", f'job = "{job.name.removeprefix("job_")}"')
    governor = house.governor
    governor.start()
    governor.until(lambda: governor.run("job"), "the job is watched")
    house.nan("job")
    incident = governor.until_stage("HALTED")
    assert {target["pid"] for target in incident["targets"]} == {task, beside.pid}
    assert incident["uid"] == ALICE
    assert [what for what in (entry["what"] for entry in incident["timeline"]) if what == "kill"] == []
    assert beside.wait(SAFETY_S) == -signal.SIGTERM, "root's own configuration names it, and it manages nobody"
    assert manager.poll() is None


def test_a_strangers_group_of_the_same_name_is_not_the_units_nor_the_jobs(job: Path, house: House) -> None:
    """`systemd-run --user --unit=NAME` by another user, and a directory of another user's named as a job."""
    slurm, number = job.parent, job.name.removeprefix("job_")
    slices, manager = slurm / "machines.slice", slurm / f"user-{MALLORY}.slice" / f"user@{MALLORY}.service"
    places = {
        "unit": slices / "train.service", "job": job / "task",
        "manager": manager / "app.slice" / "train.service", "delegated": slices / "of_mallory.slice" / "train.service",
        "named": manager / f"slurm_{number}" / f"job_{number}",
    }  # fmt: skip
    inside = {}
    for name, place in places.items():
        place.mkdir(parents=True, exist_ok=True)
        inside[name] = house.process(ALICE if name in ("unit", "job") else MALLORY)
        (place / "cgroup.procs").write_text(str(inside[name].pid))
    os.chown(slices / "of_mallory.slice", MALLORY, MALLORY)
    for name, value in (("unit", "train.service"), ("job", number)):
        house.file(house.directory(name, ALICE) / "log", "", ALICE)
        house.stream(house.public / name, f'{name} = "{value}"')
    governor = house.governor
    governor.start()
    governor.until(lambda: bool(governor.run("unit") and governor.run("job")), "both are watched")
    for name in ("unit", "job"):
        house.nan(name)
    governor.until(lambda: len(governor.incidents()) == 2, "both are halted")
    governor.until(lambda: {i["halt_stage"] for i in governor.incidents()} == {"HALTED"}, "both halts end")
    ended = {i["run"]: [target["pid"] for target in i["targets"]] for i in governor.incidents()}
    assert ended == {name: [inside[name].pid] for name in ("unit", "job")}
    assert [inside[name].poll() for name in ("manager", "delegated", "named")] == [None] * 3


@pytest.fixture
def job(public: Path) -> Iterator[Path]:
    """A job's control group, as Slurm names it."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no writable cgroup2 (mount -t cgroup2)")
    made = root / f"slurm_{public.name}" / f"job_{public.name}"
    try:
        for directory in (made.parent, made, made / "slurm", made / "task"):
            directory.mkdir()
    except OSError as error:
        pytest.skip(f"no writable cgroup2: {error}")
    yield made
    left = [directory for directory in made.parent.rglob("*") if directory.is_dir()]
    for directory in (*sorted(left, key=lambda one: -len(one.parts)), made.parent):
        _until_empty(directory)
        directory.rmdir()


def _until_empty(group: Path) -> None:
    """The kernel takes a process out of its group a moment after it was waited for."""
    while "populated 1" in (group / "cgroup.events").read_text():
        for pid in (group / "cgroup.procs").read_text().split():
            until_gone(int(pid), lambda: None)


def test_a_file_system_of_a_users_own_is_decided_by_that_user_whatever_its_server_says(
    public: Path, request: pytest.FixtureRequest
) -> None:
    for place, uid, expected in ((public / "hers", MALLORY, {MALLORY}), (public / "roots", ROOT, set())):
        mount = FuseMount(place, uid)
        request.addfinalizer(mount.unmount)
        walk = Walk()
        thread = threading.Thread(target=lambda walk=walk, place=place: _open(walk, place / "pid"), daemon=True)
        thread.start()
        # What the server sees: somebody asks for the attributes of its root. It ends instead of an answer.
        mount.until_asked()
        mount.end()
        thread.join(SAFETY_S)
        assert set(walk.deciders) == expected


def _open(walk: Walk, path: Path) -> None:
    with contextlib.suppress(OSError):
        os.close(walk.open_regular(str(path)))


def test_a_directory_that_others_may_write_is_anyones_but_for_the_sticky_bit(public: Path) -> None:
    def decided() -> set[int]:
        walk = Walk()
        os.close(walk.open_regular(str(public / "d" / "log")))
        return set(walk.deciders)

    directory = public / "d"
    directory.mkdir()
    (directory / "log").write_text("")
    for mode, uid, gid, expected in (
        (0o755, ROOT, GROUP, set()), (0o775, ROOT, GROUP, {ANYONE}), (0o777, ROOT, ROOT, {ANYONE}),
        (0o1777, ROOT, ROOT, set()), (0o1775, ROOT, GROUP, set()), (0o775, ALICE, ALICE, {ALICE}),
        (0o1777, ALICE, ALICE, {ALICE}),
    ):  # fmt: skip
        os.chown(directory, uid, gid)
        directory.chmod(mode)
        assert decided() == expected, (oct(mode), uid, gid)
    directory.chmod(0o755)
    os.setxattr(directory, "system.posix_acl_access", ACL_FOR_ANOTHER)
    os.chown(directory, ALICE, ALICE)
    assert decided() == {ALICE, ANYONE}


# user::rwx user:MALLORY:rwx group::r-x mask::rwx other::r-x (acl(5), linux/posix_acl_xattr.h)
ACL_FOR_ANOTHER = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, who)
    for tag, rights, who in (
        (1, 7, 2**32 - 1), (2, 7, MALLORY), (4, 5, 2**32 - 1), (16, 7, 2**32 - 1), (32, 5, 2**32 - 1),
    )
)  # fmt: skip


class FuseMount:
    """A file system in user space whose server never answers, as a file server that is gone."""

    def __init__(self, place: Path, uid: int) -> None:
        libc: Callable[..., int] = ctypes.CDLL(None, use_errno=True).mount
        self.place = place
        place.mkdir()
        self.server = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.server},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
        if libc(b"hung", os.fsencode(place), b"fuse", 0, options) != 0:
            os.close(self.server)
            pytest.skip(f"cannot mount a FUSE file system: {os.strerror(ctypes.get_errno())}")

    def until_asked(self) -> None:
        """Two requests: the first says hello, and is answered so that others come."""
        hello = os.read(self.server, 1 << 17)
        (unique,) = struct.unpack_from("<Q", hello, 8)
        reply = struct.pack("<IIIIHHI", 7, 31, 65536, 0, 12, 10, 65536).ljust(64, b"\0")
        os.write(self.server, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)
        os.read(self.server, 1 << 17)

    def end(self) -> None:
        """Whoever waits gets an error now."""
        os.close(self.server)
        self.server = -1

    def unmount(self) -> None:
        if self.server >= 0:
            self.end()
        subprocess.run(["umount", "--lazy", str(self.place)], check=True)


@pytest.fixture
def hung_mount(public: Path) -> Iterator[Path]:
    mount = FuseMount(public / "hung-mount", ROOT)
    yield mount.place
    mount.unmount()
