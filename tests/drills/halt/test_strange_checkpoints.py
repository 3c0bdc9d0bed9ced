"""Checkpoints that strangers acknowledge: reading them costs neither the daemon nor anybody else's verification."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import select
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from governor.adapters.trainers.checkpoints import DiskCheckpoints
from governor.adapters.trainers.reader_places import READERS_MAX, Places
from governor.reports.incident import incident_markdown, timeline_lines
from tests.drills.halt.conftest import SAFETY_S, Service
from tests.drills.halt.puppet import Puppet
from tests.unit.shim.weights_files import COUNT, NAN, ONE, dcp, safetensors, torch_zip
from trainer_shim import wire
from trainer_shim.saving import checkpoint

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of two other users")

NOBODY, DAEMON = 65534, 1
GROWN_KB_MAX = 20 * 1024
ENTRIES = (1_100_000, 600_000)  # More bytes than are read, and more entries.
STEP = 30
HOUR_NS = 3_600 * 10**9


class Rank:
    """One run of one user. It trains, reports a NaN, and says that it has saved a checkpoint."""

    def __init__(self, governor: Service, interpreter: str, uid: int, run: str) -> None:
        self.governor, self.run, self.uid = governor, run, uid
        self.path = governor.work / f"home-{uid}" / run / "cg_30"
        self.path.mkdir(parents=True)
        prefix = ["setpriv", "--clear-groups", f"--regid={uid}", f"--reuid={uid}", interpreter]
        self.puppet = Puppet(governor.work / "run" / "trainer.sock", prefix=prefix)

    def own(self) -> None:
        """The directory and all in it become the user's, and nobody else's."""
        for one in (self.path.parent, self.path, *self.path.iterdir()):
            os.chown(one, self.uid, self.uid, follow_symlinks=False)
        self.path.chmod(0o700)

    def fail(self, **hello: Any) -> None:
        """Long trained, unsaved, and now a NaN: the halt waits for a checkpoint."""
        began = max(1, time.monotonic_ns() - HOUR_NS)
        self.puppet.hello(run=self.run, capabilities=["ask"], started_mono_ns=began, **hello)
        self.puppet.steps(2, STEP)
        self.puppet.steps(STEP + 1, STEP + 1, "nan")

    def acknowledge(self) -> None:
        """Of a kind that the ranks chose, not the request: nobody holds them to it."""
        incident = self.governor.until(self.incident, f"{self.run} is halted")["incident_id"]
        record = {
            "path": str(self.path), "manifest": str(self.path / checkpoint.MANIFEST), "files": 1, "bytes": 1,
            "hashed": True, "kind": "good", "tokens_total": None,
        }  # fmt: skip
        frame = {**wire.head("ack", 0, 1), "seq": 2, "incident": incident, "what": "saved", "step": STEP}
        self.puppet.say({**frame, "checkpoint": record, "exit_after": True})

    def incident(self) -> dict[str, Any] | None:
        return next((one for one in self.governor.incidents() if one["run"] == self.run), None)

    def was_read(self) -> dict[str, Any] | None:
        timeline = (self.incident() or {"timeline": []})["timeline"]
        return next((entry["detail"] for entry in timeline if entry["what"] == "checkpoint_read"), None)

    def read(self) -> dict[str, Any]:
        """What the governor found when it read the checkpoint."""
        return dict(self.governor.until(self.was_read, f"the checkpoint of {self.run} is read"))


@pytest.fixture
def governor(public: Path) -> Iterator[Service]:
    made = Service(public)
    made.start()
    yield made
    made.end()


Start = Callable[[int, str], Rank]


@pytest.fixture
def start(governor: Service, interpreter: str) -> Iterator[Start]:
    ranks: list[Rank] = []

    def make(uid: int, run: str) -> Rank:
        ranks.append(Rank(governor, interpreter, uid, run))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.puppet.end()


def write_whole(rank: Rank) -> None:
    (rank.path / "weights.bin").write_bytes(bytes(1000))
    parts = checkpoint.secure(str(rank.path), 0, 1, 0, 1, time.monotonic_ns() + HOUR_NS)
    checkpoint.commit(str(rank.path), parts, {"step": STEP, "kind": "good", "world_size": 1}, move_latest=False)
    rank.own()


def vm_hwm_kb(governor: Service) -> int:
    assert governor.process is not None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{governor.process.pid}/status").read_text())
    assert found is not None
    return int(found[1])


def test_a_manifest_of_a_million_entries_costs_the_daemon_neither_memory_nor_its_answers(
    governor: Service, start: Start
) -> None:
    ranks = [start(NOBODY, f"run{number}") for number in range(4)]
    entry = b'{"path":"weights","bytes":1}'
    for number, rank in enumerate(ranks):
        (rank.path / "weights").write_bytes(b"x")
        with (rank.path / checkpoint.MANIFEST).open("wb") as file:
            file.write(b'{"v":1,"step":30,"files":[' + b",".join([entry] * ENTRIES[number % 2]) + b"]}")
        rank.own()
        rank.fail()
    before_kb = vm_hwm_kb(governor)
    for rank in ranks:
        rank.acknowledge()
    slowest_s = 0.0
    while not all(rank.was_read() for rank in ranks):
        asked = time.monotonic()
        assert governor.ask({"cmd": "status"}) is not None, "nobody answers"
        slowest_s = max(slowest_s, time.monotonic() - asked)
    grown_kb = vm_hwm_kb(governor) - before_kb
    print(f"VmHWM {before_kb} kB, grown by {grown_kb} kB; slowest answer {slowest_s * 1000:.0f} ms")
    assert grown_kb < GROWN_KB_MAX
    for number, rank in enumerate(ranks):
        found = rank.read()
        assert (found["whole"], found["hashed"]) == (None, 0), "not read is not torn, and not whole"
        size = (rank.path / checkpoint.MANIFEST).stat().st_size
        assert (f"{size:,} bytes", "more than 100,000 entries")[number % 2] in found["reason"]


def test_fifos_of_one_user_are_torn_checkpoints_and_another_users_is_verified(governor: Service, start: Start) -> None:
    fifos = [start(NOBODY, f"fifo{number}") for number in range(4)]
    for rank in fifos:
        os.mkfifo(rank.path / checkpoint.MANIFEST, 0o644)
        rank.own()
        rank.fail()
        rank.acknowledge()
    honest = start(DAEMON, "honest")
    write_whole(honest)
    honest.fail()
    honest.acknowledge()
    assert honest.read()["whole"] is True
    assert (honest.incident() or {})["checkpoint"]["verified_by"] == "governor"
    for rank in fifos:
        assert (rank.read()["whole"], rank.read()["reason"]) == (False, "the manifest is no regular file")


def test_it_is_read_with_the_rights_of_its_owner_not_of_the_daemon(governor: Service, start: Start) -> None:
    secret = governor.work / "secret"
    secret.write_bytes(b"root's own")
    secret.chmod(0o600)
    rank = start(NOBODY, "curious")
    (rank.path / "weights.bin").symlink_to(secret)
    manifest = {"v": 1, "step": STEP, "files": [{"path": "weights.bin", "bytes": 10, "sha256": None}]}
    (rank.path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    rank.own()
    rank.fail()
    rank.acknowledge()
    found = rank.read()
    assert (found["whole"], found["reason"]) == (None, "weights.bin is not readable by the governor")


def test_nan_weights_saved_as_good_are_suspect_and_a_last_good_that_was_removed_is_said_to_be_gone(
    governor: Service, start: Start
) -> None:
    rank = start(NOBODY, "rotated")
    before = rank.path.parent / "checkpoint-20"
    before.mkdir()
    (before / "model.safetensors").write_bytes(bytes(1000))
    header = json.dumps({"lm_head": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    values = struct.pack("<1000f", *[1.0] * 999, float("nan"))
    (rank.path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)
    write_whole(rank)
    rank.fail(last_good={"step": 20, "path": str(before), "mono_ns": 1})
    shutil.rmtree(before)  # As a Trainer with save_total_limit=1 does when it saves.
    rank.acknowledge()
    assert rank.read()["nonfinite"] == "model.safetensors: lm_head"

    def told() -> Any:
        incident = rank.incident() or {}
        return incident if (incident.get("last_good") or {}).get("gone") else None

    incident = governor.until(told, "the last good one is gone")
    assert (incident["checkpoint"]["kind"], incident["checkpoint"]["verified_by"]) == ("suspect", "governor")
    assert incident["last_good"]["path"] == str(before)
    assert governor.run("rotated")["last_good"]["gone"] == "is no longer there"
    governor.until_said("last_good_gone")
    governor.until_said("checkpoint_nonfinite")


def write_own(place: Path, harm: bytes) -> Path:
    """As Trainer, Lightning and torch.distributed.checkpoint write what they save by themselves."""
    raw = ONE["F32"] * (COUNT - 1) + harm
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix == ".ckpt":
        torch_zip(place, "F32", raw)
        return place
    place.mkdir()
    if "dcp" in place.name:
        dcp(place, {"__0_0.distcp": (raw,)})
    else:
        safetensors(place / "model.safetensors", {"wte": ("F32", ONE["F32"] * COUNT), "lm_head": ("F32", raw)})
    return place


def test_a_frameworks_own_checkpoint_that_is_not_finite_is_never_named_to_resume_from(
    governor: Service, start: Start
) -> None:
    """A NaN that no loss has shown is in the newest of three formats. Another run has nothing else."""
    some, none = start(NOBODY, "some"), start(DAEMON, "none")
    fine, harm = ONE["F32"], NAN["F32"]
    named = {
        some: [("step=10.ckpt", fine), ("dcp-20", harm), ("checkpoint-25", harm)],
        none: [("step=10.ckpt", harm), ("checkpoint-25", harm)],
    }
    for rank, checkpoints in named.items():
        for step, (name, last) in enumerate(checkpoints, 10):
            place = write_own(rank.path.parent / name, last)
            said = {"step": step, "path": str(place), "mono_ns": time.monotonic_ns()}
            rank.puppet.hello(run=rank.run, last_good=said, framework="hf", resume_argv=["python", "train.py"])
        rank.own()
        rank.puppet.steps(20, STEP)
        rank.puppet.steps(STEP + 1, STEP + 1, "nan")

    def told(rank: Rank) -> dict[str, Any] | None:
        incident = rank.incident() or {}
        return incident if (incident.get("last_good") or {}).get("passed_over") else None

    incident = governor.until(lambda: told(some), "its checkpoints are looked into")
    home = some.path.parent
    assert incident["last_good"]["path"] == str(home / "step=10.ckpt")
    passed = [(one["path"], one["nonfinite"]) for one in incident["last_good"]["passed_over"]]
    assert passed == [
        (str(home / "checkpoint-25"), "model.safetensors: lm_head"),
        (str(home / "dcp-20"), "__0_0.distcp: archive at byte 0"),
    ]
    report = incident_markdown(incident)
    assert f'trainer.train(resume_from_checkpoint="{home / "step=10.ckpt"}")' in report
    assert f"passed over: step 12, {home / 'checkpoint-25'} (NOT FINITE: model.safetensors: lm_head)" in report

    incident = governor.until(lambda: told(none), "its checkpoints are looked into")
    report, shown = incident_markdown(incident), "\n".join(timeline_lines(incident))
    print(shown)
    for text in (report, shown):
        assert "NONE IS LEFT; step 11" in text
        assert "resume_from_checkpoint" not in text
        assert "train.py" not in text
    governor.until_said("checkpoint_nonfinite")


def readers(governor: Service) -> dict[int, int]:
    """The daemon's readers that have become the user, by pid: their uid."""
    assert governor.process is not None
    pid = governor.process.pid
    found = {}
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # It has ended since.
            if any("checkpoint_reader" in word for word in child.cmdline()):
                found[child.pid] = child.uids().real
    return found


def test_a_reader_is_the_user_has_nothing_of_the_daemon_and_ends_with_it(governor: Service, start: Start) -> None:
    rank = start(NOBODY, "long")
    with (rank.path / "weights.bin").open("wb") as file:
        file.truncate(1 << 40)  # A hole: an hour of hashing.
    entry = {"path": "weights.bin", "bytes": 1 << 40, "sha256": "0" * 64}
    (rank.path / checkpoint.MANIFEST).write_text(json.dumps({"v": 1, "step": STEP, "files": [entry]}))
    rank.own()
    rank.fail()
    rank.acknowledge()
    pid = governor.until(lambda: [pid for pid, uid in readers(governor).items() if uid == NOBODY], "it reads")[0]
    proc = Path(f"/proc/{pid}")
    assert (proc / "environ").read_bytes() == b""
    opened = {os.readlink(fd).partition(":")[0] for fd in (proc / "fd").iterdir()}
    assert opened <= {"pipe", "/dev/null", str(rank.path / "weights.bin")}
    limits = (proc / "limits").read_text()
    assert re.search(r"Max address space +201326592 ", limits)
    assert re.search(r"Max core file size +0 +0 ", limits)
    assert re.search(r"Max processes +0 +0 ", limits)
    assert re.search(r"Groups:\s*\n", (proc / "status").read_text())
    pidfd = os.pidfd_open(pid)
    governor.kill9()
    assert select.select([pidfd], [], [], SAFETY_S)[0], "its governor is gone, and it reads on"
    os.close(pidfd)


def test_four_users_who_hash_for_ever_keep_no_fifth_one_waiting(public: Path) -> None:
    """Whose place is wanted says how far it has come. Nobody's checkpoint is called torn for that."""

    def make(uid: int, size: int) -> Path:
        path = public / str(uid)
        path.mkdir(mode=0o700)
        with (path / "weights.bin").open("wb") as weights:
            weights.truncate(size)  # A hole: no disk holds so much.
        entry = {"path": "weights.bin", "bytes": size, "sha256": hashlib.sha256(bytes(min(size, 1000))).hexdigest()}
        (path / checkpoint.MANIFEST).write_text(json.dumps({"v": 1, "step": STEP, "files": [entry]}))
        for one in (path, *path.iterdir()):
            os.chown(one, uid, uid)
        return path

    places = Places(wait_max_s=SAFETY_S, fair_s=0.3)
    checkpoints = DiskCheckpoints(places=places)
    strangers = {uid: make(uid, 1 << 42) for uid in range(1001, 1001 + READERS_MAX)}
    with ThreadPoolExecutor() as pool:
        reads = [pool.submit(checkpoints.read, str(path), "", uid=uid, gid=uid) for uid, path in strangers.items()]
        while len(places._seats) < READERS_MAX:
            pass
        path = make(NOBODY, 1000)
        found = checkpoints.read(str(path), "", uid=NOBODY, gid=NOBODY)
        assert (found.whole, found.hashed) == (True, 1), found.reason
        for seat in places._seats:
            seat.is_wanted = True
        looks = [read.result(SAFETY_S) for read in reads]
    assert {(one.whole, one.hashed) for one in looks} == {(True, 0)}, looks


class DeadMount:
    """A FUSE file system whose server takes every request and answers none but the first."""

    INIT, ANSWER = 26, struct.Struct("<IIIIHHIIHH8I")

    def __init__(self, place: Path) -> None:
        self.place = os.fsencode(place)
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.libc = ctypes.CDLL(None, use_errno=True)
        options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % self.fd
        assert self.libc.mount(b"dead", self.place, b"fuse.dead", 0, options) == 0, os.strerror(ctypes.get_errno())
        _, kind, unique = struct.unpack_from("<IIQ", os.read(self.fd, 1 << 16))
        assert kind == self.INIT
        answer = self.ANSWER.pack(7, 31, 0, 0, 0, 0, 4096, 1, 1, 0, *[0] * 8)
        os.write(self.fd, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)

    def take(self) -> None:
        """Somebody waits for us from now on, and not even SIGKILL ends that."""
        assert select.select([self.fd], [], [], SAFETY_S)[0]
        os.read(self.fd, 1 << 16)

    def end(self) -> None:
        self.libc.umount2(self.place, 2)  # MNT_DETACH
        os.close(self.fd)


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
def test_a_reader_on_a_dead_mount_keeps_no_memory_and_its_user_gets_no_further_one(public: Path) -> None:
    def ours(uid: int) -> Path:
        path = public / str(uid)
        path.mkdir()
        return path

    whole = ours(NOBODY)
    (whole / "weights.bin").write_bytes(bytes(1000))
    parts = checkpoint.secure(str(whole), 0, 1, 0, 1, time.monotonic_ns() + HOUR_NS)
    checkpoint.commit(str(whole), parts, {"step": STEP, "kind": "good", "world_size": 1}, move_latest=False)
    for one in (whole, *whole.iterdir()):
        os.chown(one, NOBODY, NOBODY)
    checkpoints, dead = DiskCheckpoints(silent_s=0.5), ours(DAEMON)
    mount = DeadMount(dead)
    try:
        with ThreadPoolExecutor() as pool:
            stuck = pool.submit(checkpoints.read, str(dead / "cg_30"), "", uid=DAEMON, gid=DAEMON)
            mount.take()
            assert "no answer" in stuck.result(SAFETY_S).reason
        ((_, hung),) = checkpoints._places._hung
        status = Path(f"/proc/{hung.reader.pid}/status").read_text()
        assert re.search(r"State:\s+D", status)
        assert re.search(r"RssAnon:\s+0 kB", status)
        assert hung.bytes == 0
        reason = checkpoints.read(str(whole), "", uid=DAEMON, gid=DAEMON).reason
        assert reason == f"1 reader hangs on files of uid {DAEMON}, and nothing ends it"
        assert checkpoints.read(str(whole), "", uid=NOBODY, gid=NOBODY).whole is True
    finally:
        mount.end()
    hung.reader.wait(SAFETY_S)
    assert checkpoints.read(str(dead / "cg_30"), "", uid=DAEMON, gid=DAEMON).reason == "not readable by the governor"
