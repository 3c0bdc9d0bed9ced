"""`costgov top` in a real tmux of 80 x 24, beside the real service and a trainer that it watches."""

from __future__ import annotations

import itertools
import os
import pty
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from governor.text.screen import width
from tests.drills.cli.installed import BOUND_S, COSTGOV
from tests.drills.cli.test_with_the_real_daemon import daemon, trainee  # noqa: F401 - fixtures.

PACE_S = 0.1
SERVERS = itertools.count()
COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|38;|48;)[0-9;]*m")


class Tmux:
    def __init__(self, environ: dict[str, str], directory: Path) -> None:
        self._environ = {**environ, "TMUX_TMPDIR": str(directory), "LC_ALL": "C.UTF-8"}
        del self._environ["TERM"]
        self._name = f"drill{next(SERVERS)}"  # One that ends is not met by who begins the next.

    def __call__(self, *words: str) -> str:
        words = ("tmux", "-L", self._name, "-f", "/dev/null", *words)
        done = subprocess.run(words, env=self._environ, capture_output=True, text=True, timeout=BOUND_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def keys(self, *keys: str) -> None:
        self("send-keys", *keys)

    def shown(self) -> str:
        return self("capture-pane", "-p")

    def until(self, is_so: Callable[[str], bool]) -> str:
        shown = ""
        for _ in range(round(BOUND_S / PACE_S)):
            if is_so(shown := self.shown()):
                return shown
            select.select([], [], [], PACE_S)
        pytest.fail(shown)


@contextmanager
def top_in_tmux(environ: dict[str, str], directory: Path, extra: str = "") -> Iterator[Tmux]:
    tmux = Tmux(environ, directory)
    command = f"{extra} {COSTGOV} top; echo left with $?; read -r _"
    tmux("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", command)
    try:
        yield tmux
    finally:
        tmux("kill-server")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="Debian's package tmux is not installed")
def test_an_operator_watches_holds_and_halts_and_the_service_comes_back(
    environ: dict[str, str],
    short_tmp: Path,
    daemon: subprocess.Popen[bytes],  # noqa: F811
    trainee: subprocess.Popen[bytes],  # noqa: F811
) -> None:
    with top_in_tmux(environ, short_tmp) as tmux:
        shown = tmux.until(lambda text: ">  run7" in text)
        assert f"service (pid {daemon.pid})" in shown
        assert "$22.00/h" in shown
        lines = shown.splitlines()
        assert (len(lines), max(map(width, lines)) <= 80) == (24, True)
        assert lines[-1].startswith("up/down run")

        tmux.keys("o")
        tmux.until(lambda text: "Hold run7?" in text)
        tmux.keys("by hand", "Enter")
        tmux.until(lambda text: " held " in text and "no rule halts it: by hand" in text)

        tmux.keys("h")
        tmux.until(lambda text: "Halt run7 now?" in text)
        tmux.keys("wrong data", "Enter")
        tmux.until(lambda text: "halting, incident run7." in text)
        assert trainee.wait(BOUND_S) == -signal.SIGTERM
        tmux.until(lambda text: "halted" in text)

        daemon.kill()
        daemon.wait()
        assert ">  run7" in tmux.until(lambda text: "no governor answers since" in text)
        again = subprocess.Popen([COSTGOV, "daemon"], env=environ, stderr=subprocess.DEVNULL)
        try:
            tmux.until(lambda text: f"service (pid {again.pid})" in text and "no governor answers" not in text)
            tmux.keys("q")
            tmux.until(lambda text: "left with 0" in text)
        finally:
            again.kill()
            again.wait()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="Debian's package tmux is not installed")
def test_colour_is_for_a_terminal_that_takes_it(environ: dict[str, str], short_tmp: Path, governor: object) -> None:
    for extra, is_coloured in (("", True), ("NO_COLOR=1", False)):
        with top_in_tmux(environ, short_tmp, extra) as tmux:
            shown = tmux.until(lambda text: ">  evil" in text)
            assert "RUNWAY\n" in shown, "80 columns, whatever COLUMNS says"
            assert bool(COLOUR.search(tmux("capture-pane", "-p", "-e"))) is is_coloured
            tmux.keys("Down", "h")
            tmux.until(lambda text: "Halt run7 now?" in text)
            if not is_coloured:
                assert not COLOUR.search(tmux("capture-pane", "-p", "-e")), "the question has none either"


@pytest.mark.parametrize(
    ("stub", "term", "told"),
    [
        ("raise ModuleNotFoundError(name='textual')", "xterm", "pip install 'costgov[top]'"),
        ("", "dumb", "top draws on a terminal, and this is none"),
    ],
)
def test_what_is_missing_is_one_line(
    environ: dict[str, str], short_tmp: Path, governor: object, stub: str, term: str, told: str
) -> None:
    (short_tmp / "stubs").mkdir()
    (short_tmp / "stubs" / "textual.py").write_text(stub)
    ours, theirs = pty.openpty()
    extra = {"TERM": term, "PYTHONPATH": f"{short_tmp}/stubs"}
    done = subprocess.run(
        [COSTGOV, "top"], env={**environ, **extra}, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, timeout=BOUND_S
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert told in line
    assert "`costgov status --watch`" in line
