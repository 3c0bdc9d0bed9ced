"""What version 0.1.0 has left on disk and sends on its wire is read as it was read then: see data/README.md."""

from __future__ import annotations

import json
from pathlib import Path

from tests.drills.old_state import ANSWERS, kept, played, unpack

THEN = json.loads(ANSWERS.read_text())


def test_an_old_state_directory_is_read_and_gone_on_from(short_tmp: Path) -> None:
    unpack(short_tmp)
    now = kept(short_tmp)
    for question, answer in THEN["kept"].items():
        assert answer == now[question], question
    assert now.keys() == THEN["kept"].keys()


def test_frames_of_an_old_shim_are_understood(short_tmp: Path) -> None:
    assert played(short_tmp) == THEN["played"]
