"""What a command prints and what costgov says of it, on one screen: no line stands inside another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from governor.cli.run.console import Console, JsonConsole
from governor.daemon.stderr import QueuedStream
from tests.unit.core.engine.test_step import at, make_node, training

CLEARED = "\r\x1b[2K"


class Screen(QueuedStream):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown() -> Iterator[tuple[QueuedStream, Callable[[], str]]]:
    reading, writing = os.pipe()
    stream = Screen(writing, Console.lost_line)

    def seen() -> str:
        assert stream.drain(60.0)
        os.close(writing)
        return os.read(reading, 65536).decode()

    yield stream, seen
    os.close(reading)


Shown = tuple[QueuedStream, Callable[[], str]]


def test_the_live_line_makes_room_for_what_the_command_prints(shown: Shown) -> None:
    stream, seen = shown
    console, node = Console(stream=stream), make_node()
    training(node)
    console.tick(node, at(31))
    console.copy(b"epoch 1\nepoch 2\n")
    console.tick(node, at(32))
    console.print_line("[alarm] at last")
    first, second, *rest = seen().split("\n")
    assert first.startswith(CLEARED)
    assert first.endswith(f"{CLEARED}epoch 1")
    assert second == "epoch 2"
    assert rest[0].startswith(CLEARED)
    assert rest[1:] == ["[alarm] at last", ""]


def test_the_live_line_stands_in_place_of_a_progress_bar_and_below_an_unfinished_line(shown: Shown) -> None:
    stream, seen = shown
    console, node = Console(stream=stream), make_node()
    training(node)
    console.copy(b"\r 10%|# |\r")
    console.tick(node, at(31))
    console.copy(b"\r 20%|##|\r")
    console.copy(b"\nloading")
    console.tick(node, at(32))
    console.copy(b" done\n")
    bar, loading, live, end = seen().split("\n")
    assert bar.startswith(f"\r 10%|# |\r{CLEARED}")
    assert bar.endswith(f"{CLEARED}\r 20%|##|\r")
    assert loading == "loading"
    assert live.startswith(CLEARED)
    assert live.endswith(f"{CLEARED} done")
    assert end == ""


@pytest.mark.parametrize("kind", [Console, JsonConsole])
def test_no_line_of_costgov_begins_amid_one_of_the_command(shown: Shown, kind: type[Console]) -> None:
    stream, seen = shown
    console = kind(stream=stream)
    console.copy(b"loss 2.0, no end yet")
    console.print_line("said")
    first, second, _ = seen().split("\n")
    assert first == "loss 2.0, no end yet"
    assert "said" in second
