"""Packets become events or faults, whatever they hold; only what a frame may say gets through."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.inputs import Ack, BadHello, Beat, Bye, FramesLost, Hello, PhaseChange, Step
from governor.core.events.shown import RankShowed
from governor.wire.frames import (
    FrameReader,
    confirm_packet,
    decode,
    refuse_packet,
    request_packet,
)
from governor.wire.shown import show_packet
from trainer_shim.wire import FRAME_BYTES_MAX, FRAMES, GOVERNOR_FRAMES, encode, faults, head

AT = MonoNs(5_000)
SLOW = {kind: dict(fields) for kind, fields in FRAMES.items()}
PEER = Peer(ProcessId(77, 1, "boot"), 1000)


@dataclass(frozen=True)
class Parcel:
    data: bytes
    connection: ConnectionId = ConnectionId(9)
    peer: Peer = PEER
    truncated: bool = False


def hello(**fields: Any) -> dict[str, Any]:
    required = {"seq": 1, "run": "run-1", "attempt": "a", "local_rank": 0, "world_size": 2, "signal": 10}
    return {**head("hello", 1, 1), **required, **fields}


def step(**fields: Any) -> dict[str, Any]:
    return {**head("step", 1, 1), "step": 7, "attempt_step": 3, **fields}


def beat(**fields: Any) -> dict[str, Any]:
    return {**head("beat", 1, 1), "progress_seq": 5, "phase": "train", "phase_since_ns": 40, **fields}


def decoded(frame: dict[str, Any], run: str | None = "run-1") -> Any:
    return decode(Parcel(encode(frame)), AT, run)


def test_a_hello_carries_the_connections_peer_and_nothing_the_message_claims() -> None:
    event = decoded(hello(labels={"stage": "s1", "n": 3}, capabilities=["ask"], pid=1, uid=0), run=None)
    assert isinstance(event, Hello)
    assert (event.peer, event.connection, event.at) == (PEER, 9, AT)
    assert (event.labels, event.capabilities) == ({"stage": "s1", "n": "3"}, frozenset({"ask"}))


def test_a_hello_has_the_mark_that_children_inherit_whole() -> None:
    """It is 63 random bits. Without it a halt does not know whoever has left the tree."""
    event = decoded(hello(mark=2**63 - 1), run=None)
    assert isinstance(event, Hello)
    assert event.mark == 2**63 - 1


FOUND = {
    "verified_by": "governor", "hashes_equal": 9, "torn": "t", "fault": "f", "nonfinite": "n", "unsampled": "u",
    "gone": "g", "unseen": "s", "refused_mono_ns": 5,
}  # fmt: skip


def test_what_was_found_at_a_checkpoint_is_not_the_trainer_s_to_say() -> None:
    saved = {
        "path": "/ck/8", "manifest": "/ck/8/m", "kind": "good", "files": 2, "bytes": 9, "hashed": True,
        "tokens_total": 64,
    }  # fmt: skip
    event = decoded({**head("ack", 0, 1), "seq": 2, "incident": "i", "what": "saved", "checkpoint": {**saved, **FOUND}})
    assert event.checkpoint.row() == saved
    wrong = {"path": 7, "manifest": True, "kind": "good", "files": True, "bytes": 1.5, "hashed": 1, "tokens_total": "9"}
    event = decoded({**head("ack", 0, 1), "seq": 2, "incident": "i", "what": "saved", "checkpoint": wrong})
    assert event.checkpoint.row() == {"kind": "good"}
    named = {"step": 8, "path": "/ck/8", "tokens_total": 64, "mono_ns": 7, "own_finite": True, "trained_finite": True}
    assert decoded(hello(last_good={**named, **FOUND}), run=None).last_good == NamedCheckpoint(**named)


def test_a_rank_says_which_save_was_harmed_in_its_part() -> None:
    assert decoded(hello(), run=None).harmed_save is None
    said = decoded(hello(harmed_save={"step": 40, "path": "/ck/40"}), run=None).harmed_save
    assert said == NamedCheckpoint(40, "/ck/40")


def test_a_phase_may_have_begun_before_it_was_seen_and_not_after() -> None:
    for since_ns, began in ((None, AT), (AT - 5, AT - 5), (AT + 5, AT), (-1, 0)):
        event = decoded({**head("phase", 0, 1), "phase": "train", "since_ns": since_ns})
        assert (event.at, event.began) == (AT, began)


def test_every_kind_has_its_event() -> None:
    kinds = {
        Hello: hello(),
        Step: step(),
        Beat: beat(),
        PhaseChange: {**head("phase", 0, 1), "phase": "eval"},
        Ack: {**head("ack", 0, 1), "seq": 2, "incident": "i", "what": "saved", "checkpoint": {"path": "/c"}},
        Bye: {**head("bye", 0, 1), "seq": 3, "completed": True},
        RankShowed: {**head("shown", 0, 1), "look": "look-1", "what": "collectives", "entries": ["[]"]},
    }
    assert {frame["kind"] for frame in kinds.values()} == FRAMES.keys()
    for kind, frame in kinds.items():
        assert type(decoded(frame)) is kind


@pytest.mark.parametrize(
    ("said", "resumes"),
    [
        ({"resume_called": True, "resumed_step": 40}, "called"),
        ({"resume_called": True}, "called"),
        ({"resume_called": False, "resumed_step": 40}, "loaded"),
        ({"resume_called": False}, "never"),
        ({"resumed_step": 40}, None),
    ],
)
def test_a_hello_says_whether_the_script_resumes_and_an_older_shim_does_not(
    said: dict[str, Any], resumes: str | None
) -> None:
    event = decoded(hello(**said))
    assert isinstance(event, Hello)
    assert event.resumes == resumes


@pytest.mark.parametrize(("said", "loaded_at"), [({}, 0), ({"loaded_at": 20}, 20), ({"loaded_at": -1}, 0)])
def test_a_hello_says_behind_which_step_its_origin_holds(said: dict[str, Any], loaded_at: int) -> None:
    event = decoded(hello(**said))
    assert isinstance(event, Hello)
    assert event.loaded_at == loaded_at


def test_a_hello_has_its_senders_clock_and_a_bye_the_last_step() -> None:
    event = decoded({**hello(), "mono_ns": 7})
    assert isinstance(event, Hello)
    assert event.sent == 7
    for said, last in (({"step": 40}, 40), ({"step": -1}, None), ({}, None)):
        event = decoded({**head("bye", 0, 1), "seq": 3, **said})
        assert isinstance(event, Bye)
        assert event.step == last


@pytest.mark.parametrize("frame", [step(), beat(), {**head("bye", 0, 1), "seq": 3}])
def test_before_a_hello_nothing_else_counts(frame: dict[str, Any]) -> None:
    assert decoded(frame, run=None) == [f"{frame['kind']} before any hello"]


@pytest.mark.parametrize(("word", "check"), [("nan", math.isnan), ("inf", math.isinf), ("-inf", math.isinf)])
def test_the_words_of_non_finite_numbers_are_read(word: str, check: Any) -> None:
    event = decoded(step(loss=word, grad_norm=word))
    assert isinstance(event, Step)
    assert check(event.loss)
    assert check(event.grad_norm)


def test_a_bad_clock_does_not_cost_the_loss_beside_it() -> None:
    event = decoded(step(loss=2.5, step_s=-0.1, data_s="nan", forward_s="inf", tokens=-1, comm_s=0.5))
    assert isinstance(event, Step)
    assert (event.loss, event.comm_s) == (2.5, 0.5)
    assert (event.step_s, event.data_s, event.forward_s, event.tokens) == (None, None, None, None)


def test_a_step_says_its_other_parts_and_an_older_shims_says_none() -> None:
    event, older = decoded(step(eval_s=0.5, loop_s=0.25, data_bound=True)), decoded(step(eval_s=-1.0, loop_s="inf"))
    assert isinstance(event, Step)
    assert isinstance(older, Step)
    assert (event.eval_s, event.loop_s, event.data_bound) == (0.5, 0.25, True)
    assert (older.eval_s, older.loop_s, older.data_bound) == (None, None, None)


def test_a_step_says_when_it_ended_by_the_clock_of_its_rank() -> None:
    event = decoded(step(mono_ns=41))
    assert isinstance(event, Step)
    assert (event.at, event.ended) == (AT, 41)


def test_a_time_to_come_becomes_now() -> None:
    event = decoded(beat(phase_since_ns=2**62))
    assert isinstance(event, Beat)
    assert event.phase_since == AT
    greeting = decoded(hello(started_mono_ns=2**62))
    assert isinstance(greeting, Hello)
    assert greeting.started_at == AT


def test_text_cannot_steer_a_terminal() -> None:
    event = decoded({**head("ack", 0, 1), "seq": 2, "incident": "i", "what": "failed", "reason": "\x1b[2Jx\ny"})
    assert isinstance(event, Ack)
    assert event.reason == "\ufffd[2Jx\ufffdy"


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (hello(run=""), "printable"),
        (hello(run="a\nb"), "printable"),
        (hello(rank=2), "outside the world size"),
        (hello(world_size=0), "outside the world size"),
        (hello(rank=-1), "rank is negative"),
        (hello(signal=9), "cannot be used"),
        (hello(signal=15), "cannot be used"),
        (step(step=-1), "negative"),
        (step(step=True), "step.step is not int"),
        (step(step=2**63), "step.step is not int"),
        (step(loss="NaN"), "step.loss is not num"),
        (beat(phase="sleeping"), "unknown phase"),
        (beat(stack=["x"] * 65), "beat.stack is not texts"),
        ({**head("ack", 0, 1), "seq": 2, "incident": "i", "what": "won"}, "unknown ack"),
        ({**head("step", 0, 1), "step": 1, "v": 2}, "version"),
        ({**head("gift", 0, 1)}, "unknown kind"),
    ],
)
def test_what_a_frame_may_not_say_is_named(frame: dict[str, Any], fault: str) -> None:
    found = decoded(frame)
    assert isinstance(found, list)
    assert fault in "; ".join(found)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * FRAME_BYTES_MAX,
        b'{"a":' * 10_000,
        b'{"v":1,"kind":"step","step":' + b"9" * 60_000 + b"}",
        b"null",
        b'"step"',
        b'{"v":1,"kind":["step"]}',
        b'{"v":1,"kind":{}}',
        b'{"v":1e999,"kind":"step"}',
        encode(hello(checkpoint_dir="/here")).replace(b"/here", b"\\ud800"),
        "{}".encode("utf-16"),
    ],
)
def test_hostile_bytes_are_faults(data: bytes) -> None:
    assert isinstance(decode(Parcel(data), AT, "run-1"), list)


def test_whitespace_around_an_object_is_json_and_a_second_object_is_not() -> None:
    packet = encode(step(loss=1.5))
    assert isinstance(decode(Parcel(b" \n" + packet + b"\r\n\t"), AT, "run-1"), Step)
    for tail in (packet, b"]", b"\xc2\xa0"):  # A no-break space is text.
        assert decode(Parcel(packet + tail), AT, "run-1") == ["not JSON: something follows the object"]


def test_a_truncated_packet_is_a_fault_even_if_what_fitted_is_valid() -> None:
    assert isinstance(decode(Parcel(encode(step()), truncated=True), AT, "run-1"), list)


def test_characters_beyond_the_basic_plane_pass() -> None:
    event = decoded(hello(labels={"team": "🦜"}))
    assert isinstance(event, Hello)
    assert event.labels == {"team": "🦜"}


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["nan", "inf"])
)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=5), v, max_size=4))
names = st.sampled_from([*sorted({name for fields in FRAMES.values() for name in fields}), "unknown"])
bases = st.sampled_from([hello(), step(), beat(), {**head("ack", 0, 1), "seq": 2, "incident": "i", "what": "saved"}])


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    decode(Parcel(data), AT, "run-1")


@given(bases, st.dictionaries(names, values, max_size=6))
def test_no_frame_raises_and_the_fast_check_agrees_with_the_table(base: dict[str, Any], change: dict[str, Any]) -> None:
    data = json.dumps({**base, **change}).encode()
    frame = json.loads(data)
    assert (faults(frame, FRAMES) == []) is (faults(frame, SLOW) == []), "the table's copy has no fast check"
    event = decode(Parcel(data), AT, "run-1")
    assert isinstance(event, list) is not isinstance(event, (Hello, Step, Beat, Ack, Bye, PhaseChange))


@given(bases, st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_raises_nothing(base: dict[str, Any], position: int, byte: int) -> None:
    data = bytearray(encode(base))
    data[position % len(data)] = byte
    decode(Parcel(bytes(data)), AT, "run-1")


# --- the reader of all connections -----------------------------------------------------------------------


def test_the_reader_knows_a_run_from_its_hello_until_the_connection_closes() -> None:
    reader = FrameReader()
    (lost,) = reader.read(Parcel(encode(step())), AT)
    assert lost == FramesLost(AT, ConnectionId(9), 1, "step before any hello")
    reader.read(Parcel(encode(hello(run="run-9"))), AT)
    (event,) = reader.read(Parcel(encode(step())), AT)
    assert isinstance(event, Step)
    assert event.run == "run-9"
    reader.forget(ConnectionId(9))
    assert reader.run_of(ConnectionId(9)) is None


@pytest.mark.parametrize("said", [hello(signal=15), hello(rank=1, world_size=1), hello(run="exp\n7"), hello(run=None)])
def test_a_faulty_hello_is_one_to_be_answered_unless_its_sender_is_watched(said: dict[str, Any]) -> None:
    reader = FrameReader()
    (bad,) = reader.read(Parcel(encode(said)), AT)
    assert isinstance(bad, BadHello)
    assert "hello." in bad.why
    reader.read(Parcel(encode(hello())), AT)
    (lost,) = reader.read(Parcel(encode(said)), AT)
    assert isinstance(lost, FramesLost)


def test_what_the_sender_dropped_is_counted_once_also_over_a_reconnect() -> None:
    reader = FrameReader()
    reader.read(Parcel(encode(hello())), AT)
    first, event = reader.read(Parcel(encode(step(dropped={"step": 3, "beat": 2}))), AT)
    assert first == FramesLost(AT, ConnectionId(9), 5, "dropped by the sender")
    assert isinstance(event, Step)
    assert len(reader.read(Parcel(encode(step(dropped={"step": 3, "beat": 2}))), AT)) == 1
    reader.read(Parcel(encode(hello()), connection=ConnectionId(10)), AT)
    again, _ = reader.read(Parcel(encode(step(dropped={"step": 4, "beat": 2})), connection=ConnectionId(10)), AT)
    assert again == FramesLost(AT, ConnectionId(10), 1, "dropped by the sender")


def test_the_governors_packets_are_valid_by_the_wires_own_table() -> None:
    packets = [
        request_packet(
            incident="i-1",
            checkpoint="suspect",
            deadline_mono_ns=AT,
            exit_after=True,
            reason="loss is NaN " + "x" * 600,
        ),
        show_packet("look-1", "profile", 3),
        confirm_packet(4),
        refuse_packet("y" * 600),
    ]
    assert [faults(json.loads(packet), GOVERNOR_FRAMES) for packet in packets] == [[], [], [], []]
    assert [json.loads(packet)["kind"] for packet in packets] == list(GOVERNOR_FRAMES)
