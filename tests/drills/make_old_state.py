"""Make tests/drills/data/*: what a version leaves in its state directory, sends on its wire, and says of both.

    git worktree add --detach ../old d92c353
    PYTHONPATH=$PWD python -m tests.drills.make_old_state ../old

A real daemon of that tree, real trainees: `ended` trains to its end, `halted` is halted for a NaN loss with its
checkpoint saved, `held` trains under a hold and a budget of its own, `midway` saves for its halt when the governor is
SIGKILLed. Then every row gets a boot id that no machine has, so that each reader comes to it after a reboot, and this
machine's paths become neutral ones. The answers are those of the same tree.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.drills.old_state import ANSWERS, DATA, FRAMES, STATE, Governor, kept, played, unpack

BOOT = "00000000-0000-4000-8000-000000000000"
# Starts a trainee whose packets are written down as they leave.
TAPPED = """
import runpy, socket, sys
tap, send = open(sys.argv[1], "ab", buffering=0), socket.socket.send
def tapped(self, packet, *flags):
    sent = send(self, packet, *flags)
    if self.family == socket.AF_UNIX and bytes(packet[:1]) == b"{":
        tap.write(bytes(packet) + b"\\n")
    return sent
socket.socket.send = tapped
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main(root: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix="cg-"))
    neutral = {str(work): "/srv/work", str(root): "/srv/costgov", sys.executable: "/usr/bin/python3"}
    DATA.mkdir(exist_ok=True)
    try:
        write_state(work, root)
        rewrite_journal(work / "state", neutral)
        with tarfile.open(STATE, "w:xz", format=tarfile.USTAR_FORMAT) as archive:
            archive.add(work / "state", "state", filter=lean)
        for name, path in FRAMES.items():
            path.write_text(replaced((work / f"{name}.frames").read_text(), neutral))
        answers = {}
        for name, ask in (("kept", kept), ("played", played)):
            (work / name).mkdir()
            if ask is kept:
                unpack(work / name)
            answers[name] = ask(work / name, root)
        ANSWERS.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
    finally:
        shutil.rmtree(work)


def write_state(work: Path, root: Path) -> None:
    governor = Governor(work, root)
    trainees = []

    def trainee(name: str, mode: str, unsaved_s: int = 0) -> subprocess.Popen[bytes]:
        home = work / name
        home.mkdir()
        argv = [sys.executable, "-c", TAPPED, str(work / f"{name}.frames")]
        argv += [str(root / "tests/drills/halt/trainee.py"), mode, str(home), str(unsaved_s)]
        environ = {**os.environ, "PYTHONPATH": str(root), "COSTGOV_RUN": name}
        environ["COSTGOV_SOCKET"] = str(work / "run" / "trainer.sock")
        trainees.append(subprocess.Popen(argv, env=environ, cwd=home, start_new_session=True))
        return trainees[-1]

    try:
        with governor.running():
            ended = trainee("ended", "finish")
            governor.until(lambda: (governor.run("ended").get("step") or 0) > 100, "it trains")
            (work / "ended" / "go_on").touch()
            assert ended.wait(90) == 0
            trainee("halted", "polite", 600)
            governor.until(lambda: governor.stage("halted") == "HALTED", "a run is halted")
            trainee("held", "healthy")
            governor.until(lambda: governor.run("held").get("spend_usd"), "it trains and costs")
            governor.call("hold", "held", "7d", "--reason", "evaluating by hand")
            governor.call("budget", "set", "held", "400", "--reason", "two more days", "--alert-at", "0.9")
            governor.call("budget", "set", "day", "900", "--reason", "the day's limit")
            trainee("midway", "slow_save", 600)
            governor.until(lambda: governor.stage("midway") == "SAVING", "a halt is under way")
            assert governor.process is not None
            governor.process.kill()
            governor.process.wait()
    finally:
        for process in trainees:
            process.kill()
            process.wait()


def rewrite_journal(state: Path, neutral: dict[str, str]) -> None:
    """Another boot, other paths; a checkpoint of the write-ahead log on the way, which any reader would do."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    words = {boot: BOOT, **neutral}
    for path in state.rglob("*.db"):
        database = sqlite3.connect(path)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[2] == "TEXT"]
            for column in columns:
                for old, new in words.items():
                    database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("VACUUM")
        database.close()
    for path in state.rglob("incidents/*"):
        path.write_text(replaced(path.read_text(), words))


def replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def lean(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isdir() or entry.isfile() else None


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
