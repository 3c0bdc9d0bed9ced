"""The journal is removed or replaced while the governor runs: it is written anew, and a restart knows the spend."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from contextlib import closing

import pytest

from governor.adapters.journal.db import JournalReader
from governor.adapters.journal.runtime_files import MIRROR_NAME
from tests.drills.halt.conftest import Service


@pytest.mark.parametrize("what", ["file", "directory", "replaced"])
def test_spend_and_incidents_outlive_the_journals_removal(service: Callable[..., Service], what: str) -> None:
    governor = service()
    governor.start()
    state = governor.work / "state"
    journal = state / "costgov.db"
    governor.trainee("polite")
    incident = governor.until_stage("HALTED")["incident_id"]
    spent = governor.until(lambda: governor.run().get("spend_usd"), "money is spent")
    if what == "directory":
        shutil.rmtree(
            state.rename(governor.work / "gone")
        )  # At once: a look in between would find the file gone alone.
        expected = f"the journal's directory {state} was removed while in use; it is written anew"
    elif what == "file":
        journal.unlink()
        expected = f"the journal {journal} was removed while in use; it is written anew"
    else:
        other = state / "other"
        shutil.copy(governor.policy, other)
        other.replace(journal)
        expected = f"the journal {journal} was replaced by another file while in use; it is written anew"
    governor.until_said(expected)
    governor.until_said("journal_gone")
    if what == "directory":
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
    if what == "replaced":
        [aside] = state.glob("costgov.db.replaced-*Z")
        assert aside.read_bytes() == governor.policy.read_bytes()
    with closing(JournalReader(str(journal))) as reader:
        assert [row["incident_id"] for row in reader.incidents(9, only_open=False)] == [incident]
        assert reader.rows(None, "alarm", 9), "and what came before"
    governor.kill9()
    (governor.work / "run" / MIRROR_NAME).unlink()  # The file alone must know it.
    governor.start()
    assert [one["incident_id"] for one in governor.incidents()] == [incident]
    assert governor.run()["spend_usd"] >= spent, "its budget is not begun anew"
