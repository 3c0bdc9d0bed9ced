"""A really booted systemd as PID 1 of a box: a throw-away overlay over this machine's own root, without a network.

Nothing written inside reaches this machine. /run and /tmp are fresh; directories come in read-only by `binds`.
Root only. `missing()` names what this machine lacks.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

BOOT_S_MAX = 120.0  # Seconds on an idle machine; a shared one with two cores takes longer.
COMMAND_S_MAX = 180.0
EXIT_S_MAX = 30.0
# All that a command in the box gets: what it inherits must not depend on who runs the drills.
ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
PROGRAMS = {"systemd-nspawn": "systemd-container", "dbus-daemon": "dbus", "nsenter": "util-linux", "mount": "mount"}
# Units of the machine below that would wait for a network the box does not have.
MASKED = ("systemd-networkd-wait-online.service", "NetworkManager-wait-online.service", "ifupdown-wait-online.service")


def missing() -> str | None:
    """The first component without which no box can boot here, or None."""
    if os.geteuid() != 0:
        return "root (a box needs mounts and namespaces)"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} (Debian package {package})"
    if not any(Path(path).exists() for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd")):
        return "systemd (Debian package systemd)"
    with tempfile.TemporaryDirectory() as directory, ExitStack() as cleanup:
        try:
            _mount_overlay(Path(directory), cleanup)
        except subprocess.CalledProcessError as error:
            return f"permission to mount an overlay ({error.stderr.strip() or 'mount failed'})"
    return None


def _mount_overlay(directory: Path, cleanup: ExitStack) -> Path:
    """Mount a tmpfs and an overlay of / over it; unmounted by `cleanup`."""

    def mounted(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
        cleanup.callback(subprocess.run, ["umount", "--lazy", arguments[-1]], capture_output=True)

    memory, root = directory / "memory", directory / "root"
    memory.mkdir()
    root.mkdir()
    mounted("-t", "tmpfs", "tmpfs", str(memory))
    (memory / "upper").mkdir()
    (memory / "work").mkdir()
    layers = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
    mounted("-t", "overlay", "overlay", "-o", layers, str(root))
    return root


class BootedSystemd:
    """`with BootedSystemd(binds) as box:` boots it; leaving kills everything inside and unmounts."""

    def __init__(self, binds: Mapping[Path, str] = {}) -> None:
        self._binds = dict(binds)
        self._cleanup = ExitStack()
        self._leader = 0

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            directory = Path(tempfile.mkdtemp(prefix="box-"))
            cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
            self.root = _mount_overlay(directory, cleanup)
            for unit in MASKED:
                link = self.root / "etc/systemd/system" / unit
                link.unlink(missing_ok=True)
                link.symlink_to("/dev/null")
            notify = cleanup.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            notify.bind(str(directory / "notify"))
            console = cleanup.enter_context((directory / "console").open("w+b"))
            nspawn = self._start(directory, console.fileno())
            cleanup.callback(self._end, nspawn)
            self._leader = self._wait_until_ready(notify, nspawn, directory / "console")
            notify.close()  # nspawn passes on every later message too: unread, they would block it for good.
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _start(self, directory: Path, console: int) -> subprocess.Popen[bytes]:
        binds = [f"--bind-ro={outside}:{inside}" for outside, inside in self._binds.items()]
        options = ["--quiet", "--boot", "--register=no", "--keep-unit", "--link-journal=no", "--private-network"]
        options += [
            "--notify-ready=yes",
            "--console=pipe",
            f"--machine=costgov-drill-{os.getpid()}",
            f"--directory={self.root}",
        ]
        return subprocess.Popen(
            ["systemd-nspawn", *options, *binds, "systemd.unit=basic.target"],
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "NOTIFY_SOCKET": f"{directory}/notify"},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )

    @staticmethod
    def _wait_until_ready(notify: socket.socket, nspawn: subprocess.Popen[bytes], console: Path) -> int:
        """nspawn says which process is the box's PID 1, and later that it has finished booting."""
        leader = 0
        pidfd = os.pidfd_open(nspawn.pid)
        poller = select.poll()
        poller.register(notify, select.POLLIN)
        poller.register(pidfd, select.POLLIN)
        deadline = time.monotonic() + BOOT_S_MAX
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                ready = dict(poller.poll(left_s * 1000))
                if pidfd in ready:
                    break
                if notify.fileno() in ready:
                    lines = notify.recv(4096).decode().splitlines()
                    pids = [line.partition("=")[2] for line in lines if line.startswith("X_NSPAWN_LEADER_PID=")]
                    leader = int(pids[0]) if pids else leader
                    if "READY=1" in lines and leader:
                        return leader
        finally:
            os.close(pidfd)
        raise AssertionError(f"systemd did not boot:\n{console.read_text(errors='replace')[-4000:]}")

    def _end(self, nspawn: subprocess.Popen[bytes]) -> None:
        """A box is thrown away, not shut down: the end of its PID 1 is the end of everything in it."""
        if self._leader:
            try:
                os.kill(self._leader, signal.SIGKILL)
                nspawn.wait(EXIT_S_MAX)
                return
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        nspawn.kill()
        nspawn.wait(EXIT_S_MAX)

    def argv(self, *command: str) -> list[str]:
        """How this machine runs `command` as root inside the box."""
        return ["nsenter", f"--target={self._leader}", "--all", "--", "env", "--chdir=/", *command]

    def run(
        self,
        *command: str,
        check: bool = True,
        env: Mapping[str, str] = {},
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run to its end. With `check`, a failure shows what the command said."""
        found = subprocess.run(
            self.argv(*command),
            env={**ENVIRON, **env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
        )
        assert not check or found.returncode == 0, f"{command}: exit {found.returncode}\n{found.stdout}{found.stderr}"
        return found

    def popen(self, *command: str) -> subprocess.Popen[bytes]:
        """Start inside; its stdin and stdout are pipes to the caller."""
        argv = self.argv(*command)
        return subprocess.Popen(argv, env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the box (not below /run or /tmp, which are mounts of its own)."""
        self.run("install", "-D", "-m", f"{mode:o}", "/dev/stdin", path, stdin=text)

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}", check=False).stdout
