"""What `costgov evidence` gathers, of answers that a governor might give."""

from __future__ import annotations

from typing import Any

import pytest

from governor.app import evidence
from governor.app.evidence import Wanted, gather


def answer(still_s: float, usual_step_s: float | None, look: str | None = None) -> dict[str, Any]:
    row = {
        "rank": 0, "process": {"pid": 1}, "uid": 0, "connected": True, "step": 7, "phase": "train", "still_s": still_s,
        "stack": [], "is_waited_for": look is not None, "is_unable": False, "answer": None,
    }  # fmt: skip
    return {"look": look, "ranks": [row], "usual_step_s": usual_step_s}


def profiled(*answers: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    asked: list[dict[str, Any]] = []

    def ask(request: dict[str, Any]) -> Any:
        asked.append(request)
        return answers[len(asked) - 1]

    return gather(ask, "llama", Wanted(profile_steps=3), lambda _: None)["profile"], asked


def test_a_run_that_stands_still_is_not_asked_for_a_profile() -> None:
    found, asked = profiled(answer(24.0, 0.1))
    assert found["path"] is None
    assert "no progress for 24 s" in found["problem"]
    assert "--stacks and --collectives" in found["problem"]
    assert [request.get("what") for request in asked] == [None]


def test_a_run_that_comes_to_stand_still_is_not_waited_for() -> None:
    found, asked = profiled(answer(0.1, 0.1), answer(0.2, 0.1, "look-1"), answer(11.0, 0.1, "look-1"))
    assert "no progress for 11 s" in found["problem"]
    assert len(asked) == 3


@pytest.mark.parametrize(("still_s", "usual_step_s", "is_still"), [(24, 3.0, False), (31, 3.0, True), (9, None, False)])
def test_long_steps_are_no_standstill(still_s: float, usual_step_s: float | None, is_still: bool) -> None:
    assert (evidence.stands_still(answer(still_s, usual_step_s), 0) is not None) is is_still
