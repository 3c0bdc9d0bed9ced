"""A real Chromium, without a window, looks at the page: both themes, the width of a phone, and it follows by itself."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.exporters.board import Board
from governor.adapters.exporters.prometheus import CONTENT_TYPE, ScrapeServer
from tests.golden.board_cases import BOARDS

BOUND_S = 60.0
PACE_S = 0.1
ROUNDS = round(BOUND_S / PACE_S)
CHROMIUM = os.environ.get("COSTGOV_CHROMIUM") or shutil.which("chromium")

# 300 MB with what it needs: `.ci/run` installs it, `make drills` does not.
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed")


class Browser:
    """DevTools over a pipe: JSON, each message with a zero byte behind it."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        words = ["bash", "-c", script, "-", CHROMIUM, *switches, f"--user-data-dir={profile}", "about:blank"]
        with open(profile.parent / "chromium.log", "wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, pass_fds=(theirs_in, theirs_out))
        os.close(theirs_in)
        os.close(theirs_out)
        self._received, self._seq, self.said = b"", 0, list[str]()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._seq += 1
        tab = {"sessionId": self._tab} if hasattr(self, "_tab") else {}
        os.write(self._out, json.dumps({"id": self._seq, "method": method, "params": params, **tab}).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._seq:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.said.append(json.dumps(message["params"]))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert select.select([self._in], [], [], BOUND_S)[0], "the browser says nothing"
            self._received += os.read(self._in, 1 << 20)
        message, _, self._received = self._received.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def await_value(self, expression: str) -> None:
        for _ in range(ROUNDS):
            if self.value(expression):
                return
            select.select([], [], [], PACE_S)
        pytest.fail(f"never true: {expression}; it said {self.said}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(BOUND_S)
        os.close(self._in)
        os.close(self._out)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def server(board: Board) -> Iterator[ScrapeServer]:
    board.publish(BOARDS["busy"])
    with closing(ScrapeServer("127.0.0.1", 0, lambda: b"", CONTENT_TYPE, board)) as running:
        yield running


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with closing(Browser(tmp_path / "profile")) as running:
        yield running


WIDTHS = {"desk": (1100, 900), "phone": (360, 740)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", WIDTHS)
def test_it_fits_and_can_be_read(browser: Browser, server: ScrapeServer, theme: str, screen: str) -> None:
    columns, rows = WIDTHS[screen]
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=columns, height=rows, deviceScaleFactor=1, mobile=screen == "phone"
    )
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    browser.await_value("document.readyState === 'complete' && document.querySelectorAll('article').length === 2")
    assert browser.value("document.documentElement.scrollWidth") <= columns, "nothing is pushed out of the side"
    ground, ink = browser.value(
        "((c) => { c.fillStyle = 'Canvas'; const a = c.fillStyle; c.fillStyle = "
        "getComputedStyle(document.body).color; return [matchMedia('(prefers-color-scheme: dark)').matches, "
        "getComputedStyle(document.body).color]; })(document.createElement('canvas').getContext('2d'))"
    )
    assert (ground, ink) == ((True, "rgb(255, 255, 255)") if theme == "dark" else (False, "rgb(0, 0, 0)"))
    assert browser.value("document.querySelector('svg rect').getBoundingClientRect().width > 0 || innerWidth < 640")
    shots = os.environ.get("COSTGOV_SHOTS")
    if shots:
        import base64

        shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        Path(shots, f"board_{screen}_{theme}.png").write_bytes(base64.b64decode(shot))
    assert browser.said == [], "the page's own policy refuses nothing of it"


def test_it_follows_and_says_when_nobody_answers(browser: Browser, board: Board, server: ScrapeServer) -> None:
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    browser.await_value("document.querySelectorAll('article').length === 2")
    browser.value("window.isTheSamePage = true")
    board.publish(BOARDS["halting"])
    browser.await_value("document.querySelector('main')?.innerText.includes('incident llama-8b.gpu-17.2')")
    assert browser.value("window.isTheSamePage"), "it was not loaded again"
    assert browser.value("getComputedStyle(document.getElementById('lost')).display") == "none"
    server.close()
    browser.await_value("getComputedStyle(document.getElementById('lost')).display === 'block'")
    assert browser.value("document.querySelector('main').innerText.includes('llama-8b')"), "what it said last stays"


def test_a_name_does_nothing_in_it(browser: Browser, board: Board, server: ScrapeServer) -> None:
    name = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    busy = BOARDS["busy"]
    board.publish({**busy, "node": name, "runs": [{**busy["runs"][0], "run": name}]})
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    browser.await_value("document.readyState === 'complete' && document.querySelectorAll('article').length === 1")
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.value("document.title").startswith("costgov: <img")
    assert name in browser.value("document.querySelector('h2').innerText")
