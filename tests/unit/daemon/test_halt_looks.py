"""Who is asked to show something, whose answer counts, and what a halt keeps of it without waiting for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.findings import Finding, Reading
from governor.core.engine import incidents, verdicts
from governor.core.events.effects import CloseIncident, Term
from governor.core.events.shown import RankShowed
from governor.core.halt.incident import Incident
from governor.daemon import rank_looks
from tests.contract.fakes import FakeTrainer
from tests.unit.core.engine.test_step import a_step, at, hello, play
from tests.unit.daemon.test_perform_order import Bench

ABLE = frozenset({"ask", "beat", "show"})


class Looked(Bench):
    """Two ranks, which can show what they have entered."""

    def __init__(self, *able: int) -> None:
        super().__init__()
        for rank, trainer in enumerate(self.trainers):
            capabilities = ABLE if rank in (able or (0, 1)) else ABLE - {"show"}
            said = replace(hello(rank), connection=trainer.connection, peer=trainer.peer, capabilities=capabilities)
            play(self.node, said)
        play(self.node, a_step(1), a_step(1, rank=1))
        self.managed = self.node.runs["llama"]

    def halt(self, trigger: str = "hang", checkpoint: str = "good", evidence: dict[str, Any] | None = None) -> Incident:
        finding = Finding(Reading.FIRING, "no_progress", "nothing moves", evidence or {"still_s": 9})
        verdict = verdicts.verdict_by_hand(self.managed, finding, trigger, checkpoint)
        self.performer.perform(incidents.open_incident(self.node, self.managed, verdict, at(2)))
        assert self.managed.incident is not None
        return self.managed.incident

    def asked(self) -> list[str]:
        """The look of each rank that was asked."""
        return [frame["look"] for trainer in self.trainers for frame in self.frames(trainer) if frame["kind"] == "show"]

    def frames(self, trainer: FakeTrainer) -> list[dict[str, Any]]:
        return [json.loads(letter) for letter in trainer.letters]

    def shows(self, rank: int, number: int, *, by: int | None = None, **changes: Any) -> None:
        """`rank` has entered so many collectives, says the connection of `by`."""
        look = self.asked()[0]
        entry = json.dumps(["0/default_pg", number, "gloo:all_reduce", "scheduled", "[[4]]", False, False])
        connection = self.trainers[rank if by is None else by].connection
        showed = RankShowed(at(3), connection, "llama", look, "collectives", (entry,))
        self.performer.showed(replace(showed, **changes))


def told(incident: Incident) -> list[str]:
    return [entry["detail"]["text"] for entry in incident.timeline if entry["what"] == "collectives"]


# --- at a halt --------------------------------------------------------------------------------------------


def test_the_incident_of_a_hang_says_who_is_behind_when_all_have_answered() -> None:
    bench = Looked()
    incident = bench.halt()
    assert [[frame["kind"] for frame in bench.frames(one)] for one in bench.trainers] == [["letter", "show"]] * 2
    waits = len(bench.journal.waits)
    bench.shows(0, 412)
    assert told(incident) == [], "the other one may be ahead"
    bench.shows(1, 411)
    (line,) = told(incident)
    assert "rank 1 has not" in line
    assert incident.evidence["collectives"]["groups"][0]["behind"] == [1]
    assert incident.evidence["still_s"] == 9, "what the rule has judged is kept"
    assert len(bench.journal.waits) == waits, "no answer waits for the disk"


def test_what_has_come_is_on_disk_with_the_signal_and_more_becomes_the_same_line() -> None:
    bench = Looked()
    incident = bench.halt()
    bench.shows(0, 412)
    bench.performer.term(Term(incident.incident_id, "llama"))
    (kept,) = bench.journal.open_incidents()
    assert kept["evidence"]["collectives"]["problems"] == {"1": "no answer"}
    assert told(incident)[0].endswith("nothing from rank 1")
    bench.shows(1, 411)
    (line,) = told(incident)
    assert "rank 1 has not" in line
    assert incident.evidence["collectives"]["problems"] == {}


def test_a_halt_that_asks_for_no_checkpoint_asks_for_this_and_ends_the_ranks_in_the_same_act() -> None:
    bench = Looked()
    incident = bench.halt(checkpoint="none")
    assert [[frame["kind"] for frame in bench.frames(one)] for one in bench.trainers] == [["show"]] * 2
    assert all(process.received for process in bench.processes.by_pid.values()), "SIGTERM has waited for no answer"
    assert told(incident) == [], "nobody has told anything"
    assert incident.evidence["collectives"]["problems"] == {"0": "no answer", "1": "no answer"}


@pytest.mark.parametrize(
    ("trigger", "evidence", "is_asked"),
    [
        ("hang", None, True),
        ("silence", None, True),
        ("log_stalled", None, True),
        ("nonfinite", None, False),
        ("all", {"all": [{"trigger": "budget"}, {"trigger": "hang"}]}, True),
        ("all", {"all": [{"trigger": "budget"}, {"trigger": "nonfinite"}]}, False),
    ],
)
def test_only_a_run_that_stands_still_is_asked(trigger: str, evidence: dict[str, Any] | None, is_asked: bool) -> None:
    bench = Looked()
    bench.halt(trigger, evidence=evidence)
    assert bool(bench.asked()) is is_asked


def test_a_rank_with_an_older_shim_or_a_full_socket_is_named_and_asked_nothing() -> None:
    bench = Looked(0)
    incident = bench.halt()
    assert [frame["kind"] for frame in bench.frames(bench.trainers[1])] == ["letter"]
    bench.shows(0, 412)
    assert incident.evidence["collectives"]["problems"].keys() == {"1"}
    assert told(incident)[0].endswith("nothing from rank 1")


def test_a_rank_that_connects_again_is_asked_once_more() -> None:
    bench = Looked()
    incident = bench.halt()
    again = bench.trainers[1].peer
    new = bench.performer.inbox.connect(again)  # type: ignore[attr-defined]
    said = replace(hello(1, 2.5), connection=new.connection, peer=again, capabilities=ABLE)
    bench.performer.perform(play(bench.node, said))
    assert [frame["kind"] for frame in bench.frames(new)].count("show") == 1
    assert len(bench.asked()) == 2, "and nobody who was asked before"
    bench.trainers[1] = new
    bench.shows(0, 412)
    bench.shows(1, 411)
    assert "rank 1 has not" in told(incident)[0]


def test_an_answer_behind_the_halt_changes_nothing() -> None:
    bench = Looked()
    incident = bench.halt()
    incident.give_up(at(4), bench.node.wall(at(4)), "abandoned")
    bench.shows(0, 412)
    bench.shows(1, 411)
    assert "collectives" not in incident.evidence


def test_an_answer_that_comes_late_is_in_the_incident_though_another_is_missing() -> None:
    """SIGTERM has summed up, before anybody had shown anything."""
    bench = Looked()
    incident = bench.halt()
    bench.performer.term(Term(incident.incident_id, "llama"))
    bench.shows(0, 412)
    assert incident.evidence["collectives"]["problems"] == {"1": "no answer"}
    assert told(incident)


def test_a_closed_incident_keeps_no_look() -> None:
    bench = Looked()
    incident = bench.halt()
    bench.shows(0, 412)
    assert bench.performer.rank_looks._looks
    bench.performer.perform([CloseIncident(incident.incident_id, "llama")])
    assert bench.performer.rank_looks._looks == {}


def test_what_is_kept_is_bounded_whatever_ranks_send() -> None:
    bench = Looked()
    incident = bench.halt()
    for rank in range(2):
        words = [[f"{group}{'g' * 900}", group, "o" * 900, "s" * 900, "", False, False] for group in range(64)]
        bench.shows(rank, 1, entries=tuple(map(json.dumps, words)))
    kept = incident.evidence["collectives"]
    assert kept["groups_total"] > len(kept["groups"])
    assert len(json.dumps(kept)) < 10_000
    assert len(told(incident)[0]) < 1000


# --- looks themselves -------------------------------------------------------------------------------------


def test_an_answer_counts_once_and_from_the_connection_that_was_asked() -> None:
    bench = Looked(0)
    look = bench.performer.rank_looks.begin(bench.managed, "collectives", at(2))
    assert look is not None
    assert (look.waiting, look.unable) == ((0,), (1,))
    bench.shows(0, 5, by=1)
    bench.shows(0, 5, what="profile")
    bench.shows(0, 5, look="look-99")
    assert look.waiting == (0,)
    bench.shows(0, 5)
    bench.shows(0, 6)
    assert (look.waiting, json.loads(look.answers[0].entries[0])[1]) == ((), 5)


def test_a_person_asks_a_run_again_after_a_moment_and_a_halt_at_once() -> None:
    bench = Looked()
    looks = bench.performer.rank_looks
    first = looks.begin(bench.managed, "collectives", at(999.9))
    assert first is not None
    assert looks.begin(bench.managed, "collectives", at(999.95)) is first
    assert looks.begin(bench.managed, "profile", at(999.95), 3) is None
    bench.halt()  # At 1,000 s of the bench's clock.
    assert len(set(bench.asked())) == 2


def test_one_rank_alone_is_asked_where_one_is_named() -> None:
    bench = Looked()
    look = bench.performer.rank_looks.begin(bench.managed, "profile", at(2), 3, only=1)
    assert look is not None
    assert (look.waiting, look.unable) == ((1,), ())
    assert [frame["steps"] for frame in bench.frames(bench.trainers[1])] == [3]


def test_the_oldest_look_of_a_person_gives_way_and_a_halts_does_not() -> None:
    bench = Looked()
    incident = bench.halt()
    looks = bench.performer.rank_looks
    first = looks.begin(bench.managed, "collectives", at(1011))
    assert first is not None
    for number in range(1, rank_looks.LOOKS_PER_RUN_MAX + 1):
        looks.begin(bench.managed, "collectives", at(1011 + 11 * number))
    assert looks.of(first.look_id, at(1110)) is None
    bench.shows(0, 412)
    bench.shows(1, 411)
    assert told(incident), "the halt's is kept"


def test_a_full_socket_costs_the_look_and_nothing_else() -> None:
    bench = Looked()
    bench.trainers[0].is_full = True
    look = bench.performer.rank_looks.begin(bench.managed, "collectives", at(2))
    assert look is not None
    assert (look.waiting, look.unable) == ((1,), (0,))
