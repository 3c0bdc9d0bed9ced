"""`costgov run` over a log of which nothing is judged: the end says so, and what to pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.halt.test_own_output import NEVER, Launch


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--log-format hf -", "no record of hf in "),
        ("--log-format jsonl {}/metrcs.jsonl", "metrcs.jsonl: No such file or directory; name the file"),
    ],
)
def test_the_end_says_that_nothing_of_the_log_was_judged(tmp_path: Path, options: str, why: str) -> None:
    launch = Launch(tmp_path)
    (tmp_path / "go_on").touch()
    done = launch.run(options.format(tmp_path), 60, 0, NEVER)
    assert done.returncode == 0, done.stderr
    *_, told = [line for line in done.stderr.splitlines() if "nothing of its log was judged" in line]
    assert told.startswith("costgov: drill: ")
    assert why in told
    assert told.endswith("; pass --log-format megatron") == ("hf" in options)
