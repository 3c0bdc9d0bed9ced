"""What a rank answers to requests: once, again, another one meanwhile, and after the end."""

from __future__ import annotations

from trainer_shim.saving.open_requests import CLOSED_KEPT, OWN, CheckpointRequest, OpenRequests


def ask(
    incident: str, checkpoint: str = "good", deadline_ns: int = 1_000, exit_after: bool = False
) -> CheckpointRequest:
    return CheckpointRequest(incident, checkpoint, deadline_ns, exit_after, 86, "")


class Desk:
    def __init__(self) -> None:
        self.acks: list[dict] = []
        self.requests = OpenRequests(self.acks.append)

    def told(self) -> list[tuple]:
        return [(ack["incident"], ack["what"]) for ack in self.acks]


def test_a_request_is_received_and_its_repetition_tells_the_present_state() -> None:
    desk = Desk()
    assert desk.requests.receive(ask("i"))
    desk.requests.report("agreed", step=7)
    assert not desk.requests.receive(ask("i"))
    assert desk.told() == [("i", "received"), ("i", "agreed"), ("i", "agreed")]
    assert desk.acks[-1]["step"] == 7
    assert desk.requests.state() == {"incident": "i", "what": "agreed", "step": 7}


def test_another_incident_merges_and_makes_the_open_one_stricter() -> None:
    desk = Desk()
    desk.requests.receive(ask("first", deadline_ns=900))
    desk.requests.receive(ask("second", "suspect", deadline_ns=400, exit_after=True))
    assert desk.acks[-1] == {"incident": "second", "what": "merged", "merged_into": "first"}
    assert desk.requests.request == CheckpointRequest("first", "suspect", 400, True, 86, "")
    assert desk.requests.take_changed()
    assert not desk.requests.take_changed(), "passed on once"
    desk.requests.receive(ask("second"))
    assert desk.acks[-1]["what"] == "merged", "its repetition is answered the same"


def test_a_finished_incident_is_answered_from_memory_and_not_begun_again() -> None:
    desk = Desk()
    desk.requests.receive(ask("i"))
    desk.requests.close("saved", step=7)
    assert desk.requests.state() is None
    assert not desk.requests.receive(ask("i"))
    assert desk.acks[-1] == {"incident": "i", "what": "saved", "step": 7, "exit_after": False}
    assert desk.requests.request is None


def test_our_own_request_yields_to_the_one_that_the_ranks_agreed_on() -> None:
    desk = Desk()
    desk.requests.receive(ask("ours", "suspect", deadline_ns=400))
    assert desk.requests.adopt(ask("theirs", deadline_ns=900)) == ask("theirs", "suspect", 400)
    assert desk.told() == [("ours", "received"), ("theirs", "received"), ("ours", "merged")]


def test_a_notice_alone_opens_the_incident_on_this_rank() -> None:
    desk = Desk()
    desk.requests.adopt(ask("theirs"))
    assert desk.told() == [("theirs", "received")]


def test_a_parked_rank_takes_no_step_for_another_incident() -> None:
    desk = Desk()
    desk.requests.receive(ask("halt", exit_after=True))
    desk.requests.close("saved", step=7)
    desk.requests.halt("halt")
    assert not desk.requests.receive(ask("late"))
    assert desk.acks[-1] == {"incident": "late", "what": "merged", "merged_into": "halt"}
    assert not desk.requests.receive(ask("halt"))
    assert desk.acks[-1]["what"] == "saved"


def test_memory_of_finished_incidents_is_bounded() -> None:
    desk = Desk()
    for number in range(CLOSED_KEPT + 1):
        desk.requests.receive(ask(str(number)))
        desk.requests.close("saved")
    assert desk.requests.receive(ask("0")), "the oldest one is forgotten, and would be a new incident"
    desk.requests.close("saved")
    assert not desk.requests.receive(ask(str(CLOSED_KEPT)))


def test_a_governors_request_takes_over_what_the_script_itself_had_asked_for() -> None:
    """It waits for acks under its own name: a save that is under way already counts for it."""
    desk = Desk()
    desk.requests.receive(ask(OWN + "7.1", deadline_ns=9_000))
    desk.requests.report("saving", step=8)
    desk.acks.clear()
    desk.requests.receive(ask("halt", "suspect", deadline_ns=400, exit_after=True))
    assert desk.told() == [("halt", "received"), ("halt", "saving"), (OWN + "7.1", "merged")]
    assert desk.acks[1]["step"] == 8
    assert desk.acks[1]["exit_after"]
    assert desk.requests.request == CheckpointRequest("halt", "suspect", 400, True, 86, "")
    desk.requests.close("saved", step=8)
    assert desk.told()[-1] == ("halt", "saved")


def test_what_was_agreed_for_the_script_is_said_under_the_requests_name_too() -> None:
    """The halt's timeline lacked the step that every rank was saving: it was agreed before the request came."""
    desk = Desk()
    desk.requests.receive(ask(OWN + "7.1"))
    desk.requests.report("agreed", step=8)
    desk.requests.report("saving", step=8)
    desk.acks.clear()
    desk.requests.receive(ask("halt", exit_after=True))
    assert desk.told() == [("halt", "received"), ("halt", "agreed"), ("halt", "saving"), (OWN + "7.1", "merged")]
    assert (desk.acks[1]["step"], desk.acks[1]["exit_after"]) == (8, True)


def test_what_was_agreed_is_said_once_and_not_of_the_next_incident() -> None:
    desk = Desk()
    desk.requests.receive(ask(OWN + "7.1"))
    desk.requests.report("agreed", step=8)
    desk.acks.clear()
    desk.requests.receive(ask("halt"))
    assert desk.told() == [("halt", "received"), ("halt", "agreed"), (OWN + "7.1", "merged")]
    desk.requests.close("saved", step=8)
    desk.requests.receive(ask(OWN + "20.2"))
    desk.acks.clear()
    desk.requests.receive(ask("second"))
    assert desk.told() == [("second", "received"), (OWN + "20.2", "merged")]


def test_a_rank_with_a_governors_request_joins_the_scripts_round_under_the_requests_name() -> None:
    desk = Desk()
    desk.requests.receive(ask("halt", exit_after=True))
    joined = desk.requests.adopt(ask(OWN + "7.1"))
    assert (joined.incident, joined.exit_after) == ("halt", True)
    desk.requests.close("saved", step=8)
    assert desk.told() == [("halt", "received"), ("halt", "saved")]


def test_a_request_that_arrives_amid_the_question_is_passed_on_by_the_next_one() -> None:
    """The listener's thread may run between any two steps of the agreement thread."""

    class Amid(OpenRequests):
        is_armed = False

        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            if name == "_changed" and super().__getattribute__("is_armed"):
                self.is_armed = False
                self.receive(ask("second", "suspect"))  # Right after the flag was read.
            return value

    requests = Amid(lambda _ack: None)
    requests.receive(ask("first"))
    requests.is_armed = True
    assert [requests.take_changed() for _ in range(3)].count(True) == 1
