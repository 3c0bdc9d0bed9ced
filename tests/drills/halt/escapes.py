"""What a training script may start, and how it leaves the script's process tree: twelve ways and more, all at once.

    python escapes.py DIRECTORY                starts them, and stays itself, as the plain child
    python escapes.py DIRECTORY --alive        prints those that live, one a line; a zombie does not

Each writes its pids to DIRECTORY/escapes/WAY before it does nothing for ever.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOR_EVER = "3600"
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
RLIMIT_LOCKS = 10  # trainer_shim.mark.RLIMIT_LOCKS
WAYS = (
    *("plain", "setsid", "double_fork", "double_fork_setsid", "new_name", "nohup", "setsid_nohup", "tmux"),
    *("own_subreaper", "deaf", "stopped", "respawning", "clean_environment"),
)

EARLY = "early"  # What a trainee has detached before it attached.
# By what only a control group tells whose it is: it has set the limit that is the mark, and cleaned its environment.
NO_MARK = "no_mark"
HOP_S, HOPS_S = 0.001, 60.0


def settle(work: Path, way: str) -> None:
    """Say who we are, and do nothing for ever."""
    note(work, way, os.getpid())
    while True:
        signal.pause()


def note(work: Path, way: str, *pids: int) -> None:
    draft = work / "escapes" / f".{way}"
    draft.write_text("".join(f"{pid}\n" for pid in pids))
    draft.rename(draft.with_name(way))


def tell_and_pause(pipe: int) -> None:
    os.write(pipe, b"%d" % os.getpid())
    signal.pause()


def fork(body: Callable[[], None], *, wait: bool = False) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    if wait:
        os.waitpid(pid, 0)


def daemonized(body: Callable[[], None]) -> None:
    """Twice forked, with a session of its own in between, as of old."""

    def middle() -> None:
        os.setsid()
        fork(body)

    fork(middle, wait=True)


def shell(text: str, **environ: str) -> None:
    subprocess.run(["/bin/sh", "-c", text], env={**os.environ, **environ}, check=True)


def start_all(work: Path) -> None:
    files = work / "escapes"
    files.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None)

    def own_session() -> None:
        os.setsid()
        settle(work, "setsid")

    def renamed() -> None:
        libc.prctl(PR_SET_NAME, b"kworker/0:1", 0, 0, 0)
        note(work, "new_name", os.getpid())
        os.execv("/bin/sleep", ["httpd", FOR_EVER])

    def own_subreaper() -> None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        below = os.pipe()
        daemonized(lambda: tell_and_pause(below[1]))
        note(work, "own_subreaper", os.getpid(), int(os.read(below[0], 20)))
        signal.pause()

    def deaf() -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        settle(work, "deaf")

    def stopped() -> None:
        note(work, "stopped", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)

    fork(own_session)
    fork(lambda: fork(lambda: settle(work, "double_fork")), wait=True)
    daemonized(lambda: settle(work, "double_fork_setsid"))
    daemonized(renamed)
    daemonized(own_subreaper)
    daemonized(deaf)
    daemonized(stopped)
    named = f"echo $! > {files}/.NAME; mv {files}/.NAME {files}/NAME"
    shell(f"nohup sleep {FOR_EVER} >/dev/null 2>&1 & {named.replace('NAME', 'nohup')}")
    shell(f"setsid nohup sleep {FOR_EVER} >/dev/null 2>&1 & {named.replace('NAME', 'setsid_nohup')}")
    again = f"trap '' TERM; while :; do sleep {FOR_EVER}; done"
    shell(f'setsid sh -c "{again}" >/dev/null 2>&1 & {named.replace("NAME", "respawning")}')
    shell(f"env -i setsid sleep {FOR_EVER} >/dev/null 2>&1 & {named.replace('NAME', 'clean_environment')}")
    pane = f"echo $$ > {files}/.tmux; mv {files}/.tmux {files}/tmux; exec sleep {FOR_EVER}"
    # Else it takes the shell of the user, and a service's user may have nologin.
    shell(f"tmux -S {work}/inner -f /dev/null new-session -d '{pane}'", SHELL="/bin/sh")


def start_unmarked(work: Path) -> None:
    """Two that drop all that a process inherits but its control group; the second is another one all the time."""
    (work / "escapes").mkdir(exist_ok=True)

    def settled() -> None:
        drop_mark()
        note(work, NO_MARK, os.getpid())
        os.execve("/bin/sleep", ["httpd", FOR_EVER], {})

    def hopping() -> None:
        drop_mark()
        held = os.open(work / "escapes" / "hopping", os.O_CREAT | os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)  # All that come after it hold this lock.
        until = time.monotonic() + HOPS_S
        while time.monotonic() < until and os.fork() == 0:
            signal.sigtimedwait((), HOP_S)

    daemonized(settled)
    daemonized(hopping)


def drop_mark() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # Else whoever reads our output waits for it.
        os.dup2(nowhere, number)
    _, hard = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (hard, hard))


def is_hopping(work: Path) -> bool:
    with (work / "escapes" / "hopping").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def living(work: Path) -> dict[str, list[int]]:
    """The ways of which a process lives."""
    found: dict[str, list[int]] = {}
    for way in (*WAYS, EARLY, NO_MARK):
        file = work / "escapes" / way
        for pid in map(int, file.read_text().split() if file.exists() else ()):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX":
                found.setdefault(way, []).append(pid)
    return found


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    if sys.argv[2:] == ["--alive"]:
        for name, pids in living(directory).items():
            print(name, *pids)
    else:
        start_all(directory)
        settle(directory, "plain")
