"""What a terminal of 80 columns shows: colour where it is wanted, and nothing cut off."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from pathlib import Path
from typing import Any

import pytest

from governor.text.screen import width, without_colour
from tests.drills.cli.installed import BOUND_S, COSTGOV, Costgov
from tests.golden.report_cases import nan_halt

COLUMNS = 80
POLICY = Path(__file__).parents[3] / "policies" / "default.toml"
FREE = r"[0-9]+ MB (are )?free"  # So is the room on a disk that others write to.
CLOCK = r"\d\d:\d\d:\d\d"  # What doctor read may be another second's.
# Paths, commands, addresses: the terminal breaks them, and copies them whole.
COPIED = ("checkpoint", "last good", "resume", "[")
LONG = "llama-70b-with-a-long-name-of-a-run"
BUDGET = {
    "scope": f"run:{LONG}", "ceiling_usd": 12_345.67, "spend_usd": 1_234.5, "reserve_usd": 61.0,
    "reached_in_s": 86_400.0, "live": True, "set_at_s": 1.8e9, "source": "set live",
    "reason": "two more days, agreed with finance and with the owner of the run",
}  # fmt: skip


def on_a_terminal(environ: dict[str, str], *words: str, **extra: str) -> str:
    """What a person sees of both streams on a terminal, as raw text."""
    ours, theirs = pty.openpty()
    environ = {**environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), **extra}
    process = subprocess.Popen([COSTGOV, *words], env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], BOUND_S)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # The other end is closed: so ends a terminal.
            break
    os.close(ours)
    process.wait(BOUND_S)
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture
def busy(governor: dict[str, Any]) -> dict[str, Any]:
    """A node with long names, a ceiling and an incident."""
    status = governor["answers"]["status"]["data"]
    run = status["runs"][0] | {"run": LONG, "step": 123_456, "total_steps": 1_234_567, "spend_usd": 12_345.67}
    document = status | {"runs": [run], "governor": status["governor"] | {"budgets": [BUDGET]}}
    governor["answers"]["status"] = {"ok": True, "data": document}
    governor["answers"]["incidents"] = {"ok": True, "data": [nan_halt() | {"run": LONG}]}
    return governor


@pytest.mark.parametrize(
    ("words", "marked"),
    [(("status",), "\x1b[32mtraining\x1b[0m"), (("nonsense",), "\x1b[1;31mcostgov:\x1b[0m No such command")],
)
def test_colour_is_for_a_terminal_that_takes_it(
    environ: dict[str, str], costgov: Costgov, busy: dict[str, Any], words: tuple[str, ...], marked: str
) -> None:
    assert marked in on_a_terminal(environ, *words)
    for extra in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        shown = on_a_terminal(environ, *words, **extra)
        assert "\x1b" not in shown, extra
        assert without_colour(marked) in shown
    piped = costgov(*words, TERM="xterm", COLUMNS=str(COLUMNS))
    assert "\x1b" not in piped.stdout + piped.stderr
    assert without_colour(marked) in piped.stdout + piped.stderr


@pytest.mark.parametrize(
    "words",
    [
        "status", "budget list", "incident list", "incident show last", "prices --table", "doctor",
        "plan llama3-8b --tokens 100B --gpus 8 --provider lambda",
        "plan compare --tokens 20B --model llama2-7b 1xh100 4xa100-40", "plan sparse --model llama3-8b", "plan stages",
        "policy explain POLICY", "policy check POLICY", "policy check --show POLICY",
        "policy tune --policy POLICY LOG", "policy replay --policy POLICY LOG",
    ],
)  # fmt: skip
def test_nothing_is_cut_off_and_no_line_is_wider_than_the_terminal(
    environ: dict[str, str], costgov: Costgov, busy: dict[str, Any], short_tmp: Path, words: str
) -> None:
    """Each word that a file shows stands on the terminal too, in one piece or broken into lines."""
    log = short_tmp / f"{LONG}.jsonl"
    log.write_text(
        "".join(f'{{"t": {10 * n}, "step": {n}, "loss": {"2.0" if n < 200 else "NaN"}}}\n' for n in range(201))
    )
    words = words.replace("POLICY", str(POLICY)).replace("LOG", str(log))
    shown = without_colour(on_a_terminal(environ, *words.split()))
    wide = [line for line in shown.splitlines() if width(line) > COLUMNS]
    assert not [line for line in wide if not line.startswith(COPIED)]
    assert "…" not in shown
    joined = "".join(shown.split())
    piped = costgov(*words.split())
    words_of_file = [word for word in re.sub(FREE, "", piped.stdout).split() if not re.fullmatch(CLOCK, word)]
    assert not [word for word in words_of_file if word not in joined]


def test_the_live_line_stays_on_one_line_of_the_terminal(environ: dict[str, str]) -> None:
    """It is redrawn in place: what went on in a second line would stay behind."""
    shown = on_a_terminal(environ, "run", "--price", "22", "--name", "x" * 40, "--", "sleep", "2.5")
    drawn = [line.split("\n")[0] for line in shown.split("\r\x1b[2K")[1:]]
    assert drawn
    assert all(width(without_colour(line)) < COLUMNS for line in drawn)
    assert "\x1b[1;33mcostgov:\x1b[0m no --policy given" in shown


def test_how_a_run_ended_is_wrapped_too(environ: dict[str, str], short_tmp: Path) -> None:
    """From its journal, in the directory where `costgov run` leaves it by itself."""
    plain = {name: value for name, value in environ.items() if not name.startswith("COSTGOV_")}
    plain |= {"XDG_STATE_HOME": f"{short_tmp}/state", "XDG_RUNTIME_DIR": f"{short_tmp}/run"}
    (short_tmp / "run").mkdir(mode=0o700)
    ran = [COSTGOV, "run", "--price", "22", "--name", LONG, "--", "sh", "-c", "exit 3"]
    assert subprocess.run(ran, env=plain, capture_output=True, timeout=BOUND_S).returncode == 3
    shown = without_colour(on_a_terminal(plain, "status", LONG)).splitlines()
    told = next(place for place, line in enumerate(shown) if line.startswith(f"{LONG}: ended with exit code 3"))
    assert shown[told + 1].startswith("  ")
    assert max(map(width, shown)) <= COLUMNS
