"""Keys, questions and a governor that goes away, in Textual's own headless terminal of 80 x 24."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode, Failed
from governor.cli.top.app import Top, content_of
from governor.cli.top.command import TIMEOUT_S, read, top
from governor.cli.top.seen import Seen
from governor.core.base.units import NS_PER_HOUR
from governor.wire.control_client import Answer
from tests.golden.board_cases import HALTING, HELD, YOUNG, run_row
from tests.golden.test_top import seen

SIZE = (80, 24)
ROUNDS = 500
AWAY = Seen(problem="no governor at /x", code="no_governor")


class World:
    """What a governor would answer, and what it was asked to do."""

    def __init__(self, *runs: dict[str, Any]) -> None:
        self.now = seen(*(runs or (run_row(), run_row(**YOUNG))))
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answer = Answer(True, {"run": "llama-8b", "incident_id": "llama-8b.gpu-17.2"})

    def ask(self, path: str, request: Mapping[str, Any]) -> Answer:
        self.asked.append((path, dict(request)))
        return self.answer

    def app(self) -> Top:
        return Top(lambda: self.now, self.ask, self.now, is_coloured=False, period_s=0.1)


def text_of(app: Top) -> str:
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def until(pilot: Any, is_so: Callable[[], bool]) -> None:
    for _ in range(ROUNDS):
        await pilot.pause(0.01)
        if is_so():
            return
    pytest.fail(text_of(pilot.app))


def played(world: World, script: Callable[[Any, Top], Any]) -> Top:
    app = world.app()

    async def play() -> None:
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            await script(pilot, app)

    asyncio.run(play())
    return app


def test_it_shows_the_run_and_moves_to_the_next() -> None:
    async def script(pilot: Any, app: Top) -> None:
        assert ">  llama-8b" in text_of(app)
        assert "data starvation        $1.90/h" in text_of(app)
        assert text_of(app).splitlines()[-1].endswith("q quit"), "the last line has the keys"
        await pilot.press("down")
        assert ">  tiny" in text_of(app)
        await pilot.press("down", "up")
        assert ">  llama-8b" in text_of(app)

    played(World(), script)


def test_a_halt_asks_for_a_reason_and_goes_to_that_run_s_governor() -> None:
    world = World()

    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("h")
        await pilot.pause()
        assert "Halt llama-8b now?" in text_of(app)
        assert "stop i-0abc" in text_of(app)
        await pilot.press("enter")
        assert world.asked == [], "without a reason nothing is sent"
        assert "A reason is needed" in text_of(app)
        await pilot.press(*"bad data", "enter")
        await until(pilot, lambda: "incident llama-8b.gpu-17.2" in text_of(app))

    played(world, script)
    request = {"cmd": "halt", "reason": "bad data", "run": "llama-8b"}
    assert world.asked == [("/run/costgov/control.sock", request)]


def test_the_keys_of_a_question_are_words() -> None:
    """q, o and h are letters of a reason, and escape does nothing."""
    world = World()

    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("h", *"hoq", "escape")
        await pilot.pause()
        assert ">  llama-8b" in text_of(app)

    played(world, script)
    assert world.asked == []


def test_the_question_is_of_the_run_that_was_selected_then() -> None:
    world = World()

    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("h")
        world.now = seen(run_row(**YOUNG), run_row(run="other"))
        await pilot.pause(0.3)
        await pilot.press(*"x", "enter")
        await until(pilot, lambda: bool(world.asked))

    played(world, script)
    assert world.asked[0][1]["run"] == "llama-8b"


@pytest.mark.parametrize(
    ("length", "reason", "duration_ns"), [("1h", "by hand", NS_PER_HOUR), ("2h", "x", 2 * NS_PER_HOUR), ("off", "", 0)]
)
def test_a_hold_has_a_length_and_a_reason(length: str, reason: str, duration_ns: int) -> None:
    world = World(run_row(**HELD))

    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("o")
        await pilot.pause()
        assert 'another 53m 0s: "off" lifts that' in " ".join(text_of(app).replace("|", " ").split())
        await pilot.press("shift+tab", "end", "backspace", "backspace", *length, "enter", *reason, "enter")
        await until(pilot, lambda: "held for" in text_of(app) or "lifted" in text_of(app))

    played(world, script)
    ((_, request),) = world.asked
    assert request == {"cmd": "hold", "duration_ns": duration_ns, "reason": reason or "lifted", "run": "llama-8b"}


def test_a_hold_too_long_is_not_sent() -> None:
    world = World()

    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("o", "shift+tab", "end", "backspace", "backspace", *"8d", "enter", "x", "enter")
        await pilot.pause()
        assert "at most 7 days" in text_of(app)
        await pilot.press("escape")

    played(world, script)
    assert world.asked == []


def test_a_refusal_is_told() -> None:
    world = World()
    world.answer = Answer(
        False, error="uid 1001 neither owns run llama-8b nor may control this governor", code="denied"
    )

    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("h", "x", "enter")
        await until(pilot, lambda: "uid 1001 neither owns run llama-8b" in text_of(app))

    played(world, script)


def test_a_governor_goes_away_and_comes_back() -> None:
    world = World()

    async def script(pilot: Any, app: Top) -> None:
        world.now = AWAY
        await until(pilot, lambda: "no governor answers since" in text_of(app))
        assert ">  llama-8b" in text_of(app), "what was seen last stays"
        await pilot.press("h")
        assert "nobody can halt llama-8b now" in text_of(app)
        world.now = seen(run_row(**HALTING))
        await until(pilot, lambda: "halting SAVING" in text_of(app))
        assert "no governor answers since" not in text_of(app)

    played(world, script)
    assert world.asked == []


def test_a_run_that_is_over_is_not_asked_about() -> None:
    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("h")
        assert "llama-8b is finished: there is nothing to halt" in text_of(app)
        await pilot.press("down")

    played(World(run_row(state="finished")), script)


def test_help_and_quit() -> None:
    async def script(pilot: Any, app: Top) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Esc leaves this page." in text_of(app)
        await pilot.press("escape", "q")
        await until(pilot, lambda: not app.is_running)

    assert played(World(), script).return_code == 0


def test_a_hostile_name_is_text() -> None:
    name = "[bold]x[/] \x1b[2J\n" + "y" * 300

    async def script(pilot: Any, app: Top) -> None:
        assert "[bold]x[/]" in text_of(app)
        assert "\x1b" not in text_of(app)
        await pilot.press("h")
        await pilot.pause()
        assert "Halt [bold]x[/]" in text_of(app)
        await pilot.press("escape")

    played(World(run_row(run=name)), script)
    assert content_of(["\x1b[1;31m[red]\x1b[0m"]).plain == "[red]"


# --- what is read


def test_what_cannot_be_drawn_hides_no_other_run() -> None:
    strange = run_row(run="strange", loss=["no", "number"], findings=[{"reading": "firing"}])
    status = {"governor": {"node": "n"}, "runs": [strange, run_row()]}
    asked = []

    def question(path: str, request: Mapping[str, Any], timeout_s: float) -> Answer:
        asked.append((path, timeout_s))
        return Answer(True, status) if path == "/a" else Answer(False, error="nobody", code="no_governor")

    found = read(["/b", "/a"], question)
    assert [row.key for row in found.rows] == [("/a", "llama-8b")]
    assert found.left_out[0].startswith("run strange cannot be shown")
    assert asked == [("/b", TIMEOUT_S), ("/a", TIMEOUT_S)]


def test_the_most_telling_refusal_is_kept() -> None:
    codes = {"/a": "no_governor", "/b": "stranger", "/c": "denied"}
    found = read(codes, lambda path, *_: Answer(False, error=path, code=codes[path]))
    assert (found.governors, found.problem, found.code) == ((), "/c", "denied")
    assert "no governor at /a" in read(["/a"], lambda *_: Answer(False, code="no_governor")).problem


# --- the command


def test_without_a_terminal_it_says_what_else_there_is() -> None:
    done = CliRunner().invoke(top, [], standalone_mode=False)
    assert isinstance(done.exception, Failed)
    assert done.exception.code is ExitCode.FAILED
    assert "`costgov status --watch`" in done.exception.message
