"""Who may say what of halts, and what a governor knows of it at its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from governor.adapters.journal.halt_marks import FILE_NAME, HaltMarkFile
from governor.app.mark_requests import begin
from governor.app.requests import answer
from governor.core.base.halt_marks import HaltMark, Standing, entry_of
from governor.core.engine.node import Node
from tests.contract.fakes import FakeClock
from tests.golden.report_cases import nan_halt
from tests.unit.core.base.test_halt_marks import NAN, a_set, mark
from tests.unit.core.engine.test_step import make_node

STRANGER, OWNER, OTHER = 4_000_001, 4_000_002, 4_000_003


class Marked:
    """A governor of root or of another user, whose journal has two halts of one user's runs."""

    def __init__(self, file: HaltMarkFile, node: Node, *, is_private: bool = False) -> None:
        self.file = file
        self.halts = [
            nan_halt() | {"incident_id": f"a.b.{number}", "opened_wall_ns": number, "uid": OWNER, "policy": "p",
                          "rule": "r-nonfinite", "wrong_max": 9}
            for number in (1, 2)
        ]  # fmt: skip
        self.replies: list[dict[str, Any]] = []
        self.daemon: Any = SimpleNamespace(
            node=node, halt_marks=file, control_is_private=is_private, incident_queries=self, soon=lambda call: call(),
            performer=SimpleNamespace(clock=FakeClock(), journal=SimpleNamespace(incidents=lambda _last: self.halts)),
            reply=lambda _conn, line: self.replies.append(json.loads(line)),
        )  # fmt: skip

    def begin(self, work: Any, reply: Any) -> bool:
        """In place of the thread."""
        reply(work())
        return True

    def ask(self, uid: int, **body: Any) -> dict[str, Any]:
        told = answer(self.daemon, SimpleNamespace(uid=uid, body=body, conn=None))  # type: ignore[arg-type]
        return told if told is not None else self.replies.pop()

    def say(self, uid: int, number: int, said: str) -> dict[str, Any]:
        return self.ask(uid, cmd="incident_mark", incident_id=f"a.b.{number}", opened_wall_ns=number, said=said)

    def rearm(self, uid: int) -> dict[str, Any]:
        return self.ask(uid, cmd="rule_rearm", policy="p", rule="r-nonfinite")


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    return Marked(HaltMarkFile(tmp_path / FILE_NAME), make_node())


def entries(marked: Marked) -> list[tuple[int, str]]:
    return [(one.uid, one.said.value) for one in marked.file.read().entries if isinstance(one, HaltMark)]


def test_a_stranger_marks_nobodys_halt_and_arms_nobodys_rule(marked: Marked) -> None:
    assert (marked.say(STRANGER, 1, "false")["code"], entries(marked)) == ("denied", [])
    assert marked.say(OWNER, 1, "false")["ok"]
    assert marked.rearm(STRANGER)["code"] == "denied"
    assert entries(marked) == [(OWNER, "false")]
    assert len(marked.file.read().counted(("p", "r-nonfinite"))) == 1


def test_a_user_changes_no_word_that_counts_for_all(marked: Marked) -> None:
    assert marked.say(0, 1, "right")["ok"]
    assert marked.say(OWNER, 1, "false")["code"] == "denied"
    assert marked.say(OWNER, 2, "false")["ok"], "of which nobody has said anything"
    assert marked.say(0, 2, "right")["ok"]
    assert entries(marked) == [(0, "right"), (OWNER, "false"), (0, "right")]


def test_a_users_marks_take_force_for_this_user_and_roots_for_all(marked: Marked) -> None:
    for number in (1, 2):
        told = marked.say(OWNER, number, "false")["data"]
    assert [row["owner_uid"] for row in told["fallen_back"]] == [OWNER]
    for number in (1, 2):
        told = marked.say(0, number, "false")["data"]
    assert [row.get("owner_uid") for row in told["fallen_back"]] == [None]


def test_whoever_a_private_socket_lets_in_speaks_for_all(tmp_path: Path) -> None:
    marked = Marked(HaltMarkFile(tmp_path / FILE_NAME), make_node(), is_private=True)
    row = marked.say(STRANGER, 1, "false")["data"]["entry"]
    assert entry_of(row).for_all


def test_an_answer_is_by_the_policy_in_force_and_not_by_that_of_the_halt(marked: Marked) -> None:
    """The halts say 9."""
    assert (marked.say(0, 1, "false")["data"]["wrong_max"], marked.say(0, 1, "false")["data"]["fallen_back"]) == (2, [])
    assert len(marked.say(0, 2, "false")["data"]["fallen_back"]) == 1
    listed = marked.ask(0, cmd="halt_marks")["data"]
    assert (listed["policies"], [row["rule"] for row in listed["fallen_back"]]) == (["p"], ["r-nonfinite"])


# --- the start


POLICY = '[policy]\nname = "p"\n[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nresponse = "halt"\n'
# In a process of its own, as it is at home: it leaves its sockets and its sampler to the end of the process.
START = """
import json, sys
from pathlib import Path
from governor.app.settings_file import load_settings
from governor.app.wiring import Governor
from governor.core.events.effects import Alarm

settings, _ = load_settings(None, None, run=sys.argv[2] or None)
with Governor(settings, [Path(sys.argv[1])], exclusive=bool(sys.argv[2])) as governor:
    (rule,) = governor.node.policies.for_run({}, None, 0).rules
    print(json.dumps([rule.mode.value, *([one.name, one.text] for one in governor.begin if isinstance(one, Alarm))]))
"""


def started(work: Path, run: str) -> tuple[str, dict[str, str]]:
    """Its rule's mode, and its first alarms."""
    (work / "p.toml").write_text(POLICY)
    environ = {**os.environ, "COSTGOV_PATHS__STATE_DIR": f"{work}/s", "COSTGOV_PATHS__RUNTIME_DIR": f"{work}/r"}
    done = subprocess.run(
        [sys.executable, "-c", START, str(work / "p.toml"), run],
        env=environ,
        capture_output=True,
        timeout=60,
        check=True,
    )
    mode, *alarms = json.loads(done.stdout.splitlines()[-1])
    return mode, dict(alarms)


def test_a_start_is_with_what_was_marked_and_tells_of_it(short_tmp: Path) -> None:
    (short_tmp / "s").mkdir()
    file = HaltMarkFile(short_tmp / "s" / FILE_NAME)
    for number in (1, 2):
        file.append(mark(number))
    mode, alarms = started(short_tmp, "llama")
    assert (mode, 'rule "nan" of policy "p" no longer enforces' in alarms["fell_back"]) == ("observe", True)
    file.path.chmod(0o666)
    mode, alarms = started(short_tmp, "llama")
    assert (mode, "fell_back" in alarms) == ("enforce", False)
    assert "others may write it" in alarms["halt_marks_unreadable"]


def test_a_start_reads_what_everybody_has_said(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / FILE_NAME)
    for number in (1, 2):
        marks = file.append(mark(number))
    _, policies, told = begin(tmp_path, a_set({}))
    assert (policies.fallen(), told) == (Standing.of(a_set({}), marks).fallen(NAN), [])
    assert policies.fallen() != []
