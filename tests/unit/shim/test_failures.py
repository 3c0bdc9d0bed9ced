"""Exceptions that nobody catches: reported once, before the script's own hook, which is called whatever happens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trainer_shim.sight.failures import Failures
from trainer_shim.wire import FRAMES, TEXT_CHARS_MAX, encode, faults, head


@pytest.fixture
def called() -> Iterator[list[Any]]:
    """The script's own hooks, in the places of the interpreter's."""
    seen: list[Any] = []
    before = sys.excepthook, threading.excepthook
    sys.excepthook = lambda *args: seen.append(args)
    threading.excepthook = seen.append
    yield seen
    sys.excepthook, threading.excepthook = before


def raised(error: BaseException) -> tuple[type[BaseException], BaseException, Any]:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.type, caught.value, caught.tb


def frame(failure: dict[str, Any]) -> dict[str, Any]:
    return {**head("phase", 0, 1), "phase": "train", "failure": failure}


class StrangeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (ValueError("3 != 4\nmore"), "ValueError", "3 != 4"),
        (KeyboardInterrupt(), "KeyboardInterrupt", None),
        (RuntimeError("\n\n  x\ud800" * 2_000), "RuntimeError", "x?"),
    ],
)
def test_its_first_line_is_sent_and_fits(called: list[Any], error: BaseException, name: str, text: str | None) -> None:
    sent: list[dict[str, Any]] = []
    Failures(sent.append).install()
    sys.excepthook(*raised(error))
    (failure,) = sent
    assert (failure["name"], failure.get("text")) == (name, text)
    assert failure["place"].startswith("test_failures.py:raised:")
    assert faults(frame(failure), FRAMES) == []
    assert len(encode(frame(failure))) < 4 * TEXT_CHARS_MAX
    assert len(called) == 1


@pytest.mark.parametrize("send", [lambda _failure: 1 / 0, sys.exit])
def test_the_scripts_hook_is_called_whatever_becomes_of_ours(called: list[Any], send: Any) -> None:
    Failures(send).install()
    try:
        sys.excepthook(*raised(StrangeError()))
    except SystemExit:
        pass
    assert [args[0] for args in called] == [StrangeError]


def test_a_threads_exception_names_the_thread_and_its_exit_is_none(called: list[Any]) -> None:
    sent: list[dict[str, Any]] = []
    Failures(sent.append).install()
    for target in (lambda: 1 / 0, sys.exit):
        thread = threading.Thread(target=target, name="pin")
        thread.start()
        thread.join()
    assert [(failure["name"], failure["thread"]) for failure in sent] == [("ZeroDivisionError", "pin")]
    assert len(called) == 2


def test_hooks_are_given_back_but_not_somebody_elses(called: list[Any]) -> None:
    own = sys.excepthook
    failures = Failures(lambda _failure: None)
    failures.install()
    failures.give_back()
    assert sys.excepthook is own
    failures.install()
    ours = sys.excepthook

    def theirs(*args: Any) -> None:
        ours(*args)

    sys.excepthook = theirs
    failures.give_back()
    assert sys.excepthook is theirs
    theirs(*raised(ValueError()))
    assert len(called) == 1, "through ours, to the script's"
