"""What version 0.1.0 has left on disk and sends on its wire is read as it was read then: see data/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.drills.old_state import ANSWERS, kept, played, unpack

THEN = json.loads(ANSWERS.read_text())
# New fields that are made of what was kept then: a sum, and the page of the trigger.
DERIVED = {"quantity", "failure_modes"}


def without_news(now: Any, then: Any) -> Any:
    """`now` less the fields that `then` has not: a later version has more of them, and knows nothing there (null)."""
    if isinstance(now, dict) and isinstance(then, dict):
        claims = {key: value for key, value in now.items() if value is not None and key not in DERIVED}
        kept_fields = {key: value for key, value in now.items() if key in then or key in claims}
        return {key: without_news(value, then.get(key)) for key, value in kept_fields.items()}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [without_news(mine, theirs) for mine, theirs in zip(now, then, strict=True)]
    return now


def test_an_old_state_directory_is_read_and_gone_on_from(short_tmp: Path) -> None:
    unpack(short_tmp)
    now = kept(short_tmp)
    for question, answer in THEN["kept"].items():
        assert answer == without_news(now[question], answer), question
    assert now.keys() == THEN["kept"].keys()


def test_frames_of_an_old_shim_are_understood(short_tmp: Path) -> None:
    assert played(short_tmp) == THEN["played"]
