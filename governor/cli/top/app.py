"""The app of `costgov top`: keys, questions and a clock. What stands on the screen is drawing.draw's."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import click
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from governor.cli.act import HoldLength
from governor.cli.common import Failed, told_of
from governor.cli.top.drawing import OVER, draw
from governor.cli.top.seen import Row, Seen, Watched
from governor.core.base.units import format_duration
from governor.text.screen import Screen
from governor.text.table import plain
from governor.wire.control_client import Answer
from trainer_shim.wire import TEXT_CHARS_MAX

PERIOD_S: Final = 1.0  # About the time of a step. A shorter one only flickers.
NOTICE_S: Final = 15.0  # Long enough to copy an incident's id. The next key takes it away too.
HELP: Final = """costgov top: every run of this node's governors, once a second.

up, down   select a run        h   halt it: saved, ended, and the spending too
q, Ctrl-C  leave                o   hold it: no rule halts it for a while

h and o ask first. Who may: root, the governor's own user, members of the
socket's group, and the owner of the run. Both are audited, with your reason.

$/1M NOW   dollars for the last million tokens; EXPECTED is of [expect]
RUNWAY     until the ceiling that is met first halts the run
$/H        what that cause has cost for each hour of the run
SURE       how sure its seconds are: high is timed, low is what nothing names

Esc leaves this page.
"""
_ESCAPES: Final = re.compile(r"\x1b\[([0-9;]*)m")
_STYLES: Final = {"1": "bold", "2": "dim", "31": "ansi_red", "32": "ansi_green", "33": "ansi_yellow"}

Ask = Callable[[str, Mapping[str, Any]], Answer]


def content_of(lines: list[str]) -> Content:
    """Our own drawing with its escapes, as the app has it. No other markup is read: names stay what they are."""
    parts: list[tuple[str, str]] = []
    style = ""
    for number, part in enumerate(_ESCAPES.split("\n".join(lines))):
        if number % 2:
            style = " ".join(_STYLES[code] for code in part.split(";") if code in _STYLES)
        elif part:
            parts.append((part, style))
    return Content.assemble(*parts)


class Question(ModalScreen[dict[str, str] | None]):
    """Asks for words before something is done. Enter on the last one does it, Esc does nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", priority=True)]

    def __init__(self, text: str, fields: Mapping[str, str], check: Callable[[dict[str, str]], str]) -> None:
        """`fields`: the name of each and what stands in it at first. `check`: what is wrong with the words; "": go."""
        super().__init__()
        self._text, self._fields, self._check = text, fields, check

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(Content(self._text))
            for name, value in self._fields.items():
                yield Static(Content(f"{name}:"))
                yield Input(value, id=name, max_length=TEXT_CHARS_MAX, compact=True)
            yield Static(Content(""), id="wrong")
            yield Static(Content("Enter does it, Esc does nothing."))

    def on_mount(self) -> None:
        self.query(Input).last().focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        inputs = list(self.query(Input))
        if event.input is not inputs[-1]:
            self.focus_next()
            return
        words = {str(one.id): one.value.strip() for one in inputs}
        wrong = self._check(words)
        if wrong:
            self.query_one("#wrong", Static).update(Content(wrong))
        else:
            self.dismiss(words)

    def action_leave(self) -> None:
        self.dismiss(None)


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "leave", priority=True)]

    def compose(self) -> ComposeResult:
        yield Static(Content(HELP), id="dialog")

    def action_leave(self) -> None:
        self.dismiss(None)


class Top(App[None]):
    """`read` and `ask` block, so they are called on a thread."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, ModalScreen { background: ansi_default; color: ansi_default; overflow: hidden; }
    ModalScreen { align: center middle; }
    #body { width: 100%; height: 100%; text-wrap: nowrap; background: ansi_default; color: ansi_default; }
    #dialog { width: 78; max-width: 100%; height: auto; border: ascii ansi_default; padding: 0 1;
      background: ansi_default; color: ansi_default; }
    Input, Input:focus { background: ansi_default; color: ansi_default; text-style: underline; }
    Input > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    #wrong { color: ansi_red; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("h", "halt"),
        Binding("o", "hold"),
        Binding("question_mark", "help"),
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(
        self, read: Callable[[], Seen], ask: Ask, first: Seen, *, is_coloured: bool, period_s: float = PERIOD_S
    ) -> None:
        super().__init__(ansi_color=True)
        self._read, self._ask = read, ask
        self._is_coloured, self._period_s = is_coloured, period_s
        self._watched = Watched()
        self._watched.take(first, time.monotonic())
        self._notice, self._notice_until_s = "", 0.0
        self._soon = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="body")

    def on_mount(self) -> None:
        self._show()
        self.run_worker(self._follow())

    def on_resize(self) -> None:
        self._show()

    async def _follow(self) -> None:
        while True:
            self._watched.take(await asyncio.to_thread(self._read), time.monotonic())
            self._show()
            self._soon.clear()
            try:
                await asyncio.wait_for(self._soon.wait(), self._period_s)
            except TimeoutError:
                continue

    def _show(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._notice_until_s:
            self._notice = ""
        screen = Screen(self.size.width, self._is_coloured)
        try:
            with told_of("an answer of a governor"):
                lines = draw(self._watched, screen, self.size.height, now_s, self._notice)
        except Failed as error:
            lines = [plain(error.message)]
        self.screen_stack[0].query_one("#body", Static).update(content_of(lines))

    def _tell(self, text: str) -> None:
        self._notice, self._notice_until_s = plain(text), time.monotonic() + NOTICE_S
        self._show()

    # --- keys

    def action_move(self, by: int) -> None:
        self._watched.move(by)
        self._notice = ""
        self._show()

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_halt(self) -> None:
        row = self._living("halt")
        if row is None:
            return
        cloud = row.governor.get("cloud") or {}
        then = f"Then the governor will {plain(cloud['will'])}." if cloud.get("will") else ""
        text = f"Halt {plain(row.name)} now? It is asked to save, its processes are ended. {then}".rstrip()
        self._question(row, text, {"reason": ""}, lambda words: {"cmd": "halt", "reason": words["reason"]})

    def action_hold(self) -> None:
        row = self._living("hold")
        if row is None:
            return
        held = row.run.get("hold")
        text = (
            f'Hold {plain(row.name)}? No rule halts it for so long, its ceiling neither ("2h", "30m"; at most 7 days).'
        )
        if held:
            text += f' It is held for another {format_duration(round(held["left_s"]) * 10**9)}: "off" lifts that.'

        def request(words: dict[str, str]) -> dict[str, Any]:
            return {"cmd": "hold", "duration_ns": _length(words["for"]), "reason": words["reason"]}

        self._question(row, text, {"for": "1h", "reason": ""}, request)

    def _living(self, what: str) -> Row | None:
        row = self._watched.row
        if row is None:
            self._tell(f"there is no run to {what}")
        elif self._watched.silent_since_s is not None:
            self._tell(f"no governor answers: nobody can {what} {row.name} now")
        elif row.run["state"] in OVER:
            self._tell(f"{row.name} is {row.run['state']}: there is nothing to {what}")
        else:
            return row
        return None

    def _question(
        self, row: Row, text: str, fields: Mapping[str, str], request: Callable[[dict[str, str]], dict[str, Any]]
    ) -> None:
        """Of this row, whatever is selected when the answer is given."""

        def done(words: dict[str, str] | None) -> None:
            if words is not None:
                self.run_worker(self._send(row, request(words)))

        self.push_screen(Question(text, fields, _wrong), done)

    async def _send(self, row: Row, request: dict[str, Any]) -> None:
        self._tell(f"{row.name}: {request['cmd']} is sent")
        answer = await asyncio.to_thread(self._ask, row.path, {**request, "run": row.name})
        self._tell(_told(row.name, request, answer))
        self._soon.set()


def _length(text: str) -> int:
    return HoldLength().convert(text, None, None)


def _wrong(words: dict[str, str]) -> str:
    try:
        lifts = "for" in words and _length(words["for"]) == 0
    except click.BadParameter as error:
        return error.message
    if lifts:
        words["reason"] = words["reason"] or "lifted"
    return "" if words["reason"] else "A reason is needed: it stands in the audit."


def _told(name: str, request: Mapping[str, Any], answer: Answer) -> str:
    if not answer.ok:
        return answer.error
    if request["cmd"] == "hold":
        duration_ns = request["duration_ns"]
        return f"{name}: held for {format_duration(duration_ns)}" if duration_ns else f"{name}: the hold is lifted"
    incident = answer.data.get("incident_id")
    if incident is None:
        return f"{name}: noted, but nothing was halted (the governor only observes, or the run has just ended)"
    return f"{name}: halting, incident {incident}"
