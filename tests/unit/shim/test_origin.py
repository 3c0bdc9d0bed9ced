"""Where what a run trains began: with nothing, with a checkpoint of another run, or nobody knows."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.test_resuming import Loader, write
from trainer_shim import origin, wire
from trainer_shim.engines import base
from trainer_shim.engines.deepspeed_checkpoints import noted_at
from trainer_shim.interfaces import NoWatch
from trainer_shim.launch import Place
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint, facts
from trainer_shim.saving.manifest import parse
from trainer_shim.saving.step_gate import Order
from trainer_shim.tokens import TokenCount
from trainer_shim.watcher import Watcher

attach_module: Any = sys.modules["trainer_shim.attach"]
ALPHA = {"run": "alpha", "step": 41, "tokens_total": 4100}
NONSENSE: list[Any] = [
    [], "alpha", 1, None, {"run": "alpha"}, {"step": 1}, {"run": "", "step": 1}, {"run": 7, "step": 1},
    {"run": "a" * 513, "step": 1}, {"run": "alpha", "step": -1}, {"run": "alpha", "step": True},
    {"run": "alpha", "step": 2**63}, {"run": "alpha", "step": 1, "tokens_total": "many"},
    {"run": "alpha", "step": 1, "tokens_total": -1},
]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "began"),
    [
        ({"run": "alpha", "step": 41, "tokens_total": 4100}, ALPHA),
        ({"run": "alpha", "step": 41}, {"run": "alpha", "step": 41}),
        ({"run": "alpha"}, {"run": "alpha", "step": 40}),
        ({"run": "alpha", "step": 41, "origin": {"run": "first", "step": 3}}, {"run": "alpha", "step": 41}),
        ({"run": "alpha", "step": 0}, {}),
        ({"run": "alp\x1bha", "step": 41}, None),
        ({"run": "beta", "step": 41, "origin": ALPHA}, ALPHA),
        ({"run": "beta", "step": 41, "origin": {}}, {}),
        ({"run": "beta", "step": 41}, None),
        ({"run": "beta", "step": 0}, {}),
        ({"step": 41, "origin": {}}, None),
        ({}, None),
    ],
    ids=[
        "another run's", "one without a total", "one that tells no step", "all of it is another run's",
        "one of step 0", "one of a name that no run has", "our own", "our own from nothing",
        "our own of an older version", "our own of step 0", "one that tells no run", "not one of ours",
    ],
)  # fmt: skip
def test_where_it_began_follows_from_whose_the_loaded_checkpoint_is(
    told: dict[str, Any], began: dict[str, Any] | None
) -> None:
    assert origin.after(told, "beta", 40) == began


def test_what_is_loaded_at_step_0_and_is_not_ours_began_with_nothing() -> None:
    assert origin.after({}, "beta", 0) == {}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_makes_no_sense_in_a_checkpoint_is_left_out(nonsense: Any) -> None:
    """Who reads it may be another user than who wrote it."""
    raw = json.dumps({"step": 41, "files": [], "origin": nonsense, "run": nonsense}).encode()
    kept = {"run"} if isinstance(nonsense, str) else set()
    assert parse(raw).keys() - {"step", "files"} == kept
    assert facts.told_in({"origin": nonsense, "run": nonsense}).keys() == kept


def test_of_a_foreign_origin_only_what_is_known_goes_on() -> None:
    hostile = {**ALPHA, "more": "x" * 5000, "tokens_total": None}
    (told,) = (facts.told_in(parse(json.dumps({"step": 1, "files": [], "origin": hostile}).encode())),)
    assert told["origin"] == {"run": "alpha", "step": 41}


def hello_after(listener: socket.socket, place: Path, run: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `run` said before and behind resume() in `place`."""
    saver = Loader()
    saver.directory = str(place)
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    hello = {"run": run, "attempt": "a", "origin": {}, **more}
    watch = Watcher(hello, Progress(threading.get_ident()), saver, environ=environ)
    before = watch._hello_fields()
    assert watch.resume() is not None
    watch._let_go()
    return before, watch._hello_fields()


def saved(place: Path, **told: Any) -> Path:
    file = write(place, 41, ranks=1) / checkpoint.MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **told}))
    return file.parent


@pytest.mark.parametrize(
    ("told", "began"),
    [
        ({"run": "alpha"}, ALPHA),
        ({"run": "alpha", "tokens_total": None}, {"run": "alpha", "step": 41}),
        ({"run": "beta", "origin": ALPHA}, ALPHA),
        ({"run": "beta", "origin": {}}, {}),
        ({"run": "beta"}, None),
        ({}, None),
    ],
)
def test_resume_tells_where_what_the_run_trains_began(
    listener: socket.socket, tmp_path: Path, told: dict[str, Any], began: dict[str, Any] | None
) -> None:
    saved(tmp_path, **told)
    before, behind = hello_after(listener, tmp_path, "beta")
    assert before["origin"] == {}
    assert behind.get("origin") == began
    assert ("origin" in behind) == (began is not None), "what nobody knows is left out"
    assert not wire.faults({**behind, **wire.head("hello", 0, 1), "seq": 1}, wire.FRAMES)


def test_a_chain_of_runs_has_all_of_the_one_before_and_a_relaunch_keeps_where_it_began(
    listener: socket.socket, tmp_path: Path
) -> None:
    _, second = hello_after(listener, saved(tmp_path / "a", run="alpha", origin={}).parent, "beta")
    by_second = saved(tmp_path / "b", run="beta", tokens_total=9000, origin=second["origin"])
    _, relaunched = hello_after(listener, by_second.parent, "beta")
    assert relaunched["origin"] == second["origin"] == ALPHA
    _, third = hello_after(listener, by_second.parent, "gamma")
    assert third["origin"] == {"run": "beta", "step": 41, "tokens_total": 9000}


class Heard(NoWatch):
    """Keeps the hello fields in the order in which they came."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, Any]] = []

    def hello_field(self, name: str, value: Any) -> None:
        self.fields.append((name, value))


def metered(run: str) -> tuple[StepMeter, Heard]:
    meter, heard = StepMeter(Progress(1), TokenCount(None, None, 1)), Heard()
    meter.progress.run, meter.watch = run, heard
    return meter, heard


def test_a_ranks_position_says_whose_it_is_and_who_restores_it_knows() -> None:
    meter, _ = metered("alpha")
    meter.resumed(41, 4100)
    noted = json.loads(json.dumps(base.PositionSaver(meter).position()))
    assert (noted["run"], noted["origin"]) == ("alpha", {})

    other, heard = metered("beta")
    saver = base.PositionSaver(other)
    saver.restore_position(noted)
    told = [("origin", ALPHA), ("loaded_at", 0), ("resumed_step", 41)]
    assert heard.fields == told, "no hello has the step and the older origin"
    assert saver.position()["origin"] == ALPHA

    saver.restore_position({"step": 50, "tokens_total": None})
    assert heard.fields[3:] == [("origin", None), ("loaded_at", 0), ("resumed_step", 50)]
    assert "origin" not in saver.position(), "nobody knows"


def test_each_hello_says_behind_which_step_of_the_attempt_its_origin_holds(listener: socket.socket) -> None:
    """A step's frame may wait for the device, and come behind the hello of the load that followed it."""
    environ, progress = {"COSTGOV_SOCKET": listener.getsockname()}, Progress(threading.get_ident())
    hello = {"run": "beta", "attempt": "a", "origin": {}}
    watch = Watcher(hello, progress, Loader(), environ=environ)
    assert watch._governor.connect(1)
    watch._alive = True
    peer, _ = listener.accept()
    peer.settimeout(60)

    def said() -> tuple[Any, Any]:
        told = json.loads(peer.recv(wire.FRAME_BYTES_MAX))
        assert not wire.faults(told, wire.FRAMES)
        return told.get("origin"), told.get("loaded_at", 0)

    assert said() == ({}, 0)
    own, another = {"run": "beta", "origin": {}}, {"run": "alpha", "step": 41, "tokens_total": 4100}
    for attempt_step, told, expected in [
        (20, another, (ALPHA, 20)), (30, own, ({}, 30)), (50, {}, (None, 50)), (60, {}, (None, 60)),
    ]:  # fmt: skip
        progress.attempt_step = attempt_step
        origin.go_on(progress, watch, told, 41)
        assert said() == expected, "in one hello"
    progress.attempt_step = 70
    origin.go_on(progress, watch, another, 41)
    progress.attempt_step = 80
    origin.go_on(progress, watch, another, 41)  # Back in what it trains already.
    watch.hello_field("resumed_step", 41)
    assert [said(), said(), said()] == [(ALPHA, 70), (ALPHA, 80), (ALPHA, 80)]
    watch._let_go()
    peer.close()


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_directory_is_known_by_its_manifest_or_by_the_ranks_own_file(tmp_path: Path, has_manifest: bool) -> None:
    """As a framework leaves it that saves by itself, with our file beside."""
    path = saved(tmp_path, run="alpha")
    noted = {"run": "alpha", "step": 41, "tokens_total": 4000, "origin": {}}
    checkpoint.write_rank_file(str(path), 0, {"v": 1, "position": noted})
    if not has_manifest:
        (path / checkpoint.MANIFEST).unlink()
    meter, heard = metered("beta")
    base.go_on_from(meter, 41, str(path), 0)
    assert heard.fields[0] == ("origin", {**ALPHA, "tokens_total": 4100 if has_manifest else 4000})


def test_a_total_that_is_not_known_leaves_whose_it_is(tmp_path: Path) -> None:
    path = saved(tmp_path, run="alpha", tokens_total=None)
    meter, _ = metered("beta")
    base.go_on_from(meter, 41, str(path), 0)
    assert (meter.progress.origin, meter.tokens_known) == ({"run": "alpha", "step": 41}, False)


@pytest.mark.parametrize("position", [None, [], "x"])
def test_a_rank_file_of_nonsense_says_nothing(tmp_path: Path, position: Any) -> None:
    checkpoint.write_rank_file(str(tmp_path), 0, {"v": 1, "position": position})
    assert origin.told_beside(str(tmp_path), 0) == {}


@pytest.mark.parametrize("began", [{}, ALPHA, None])
def test_a_manifest_says_where_what_is_saved_began(began: dict[str, Any] | None) -> None:
    position = {"step": 50, "origin": began} if began is not None else {"step": 50}
    order = Order(True, "cg_50", "good", False, 0, 0, "i", 50, False)
    arrived = {"rank_state": {"position": position}, "tokens_total": 5000}
    told = facts.facts_of(order, "good", Place("beta", "a", 0, 1, 0, 1), arrived, [{}])
    assert (told["run"], told.get("origin")) == ("beta", began)
    assert ("origin" in told) == (began is not None)


@pytest.mark.parametrize("noted", ["", "cg_41", "cg_41/pytorch_model"])
@pytest.mark.parametrize("name", [checkpoint.MANIFEST, checkpoint.rank_file(1)])
def test_what_is_noted_of_deepspeeds_directory_may_lie_around_it(tmp_path: Path, noted: str, name: str) -> None:
    """Accelerate and the Trainer have it inside of theirs. What is above that belongs to another checkpoint, if any."""
    inner = tmp_path / "cg_41" / "pytorch_model"
    inner.mkdir(parents=True)
    (tmp_path / noted / name).write_text("{}")
    assert noted_at(str(inner), 1) == str(tmp_path / noted if noted else inner)


class Module:
    """What is trained, and keeps what is kept for it."""


class AtStep:
    """A kind of engine that stands at a step when it is attached."""

    def __init__(self, step: int, **fields: Any) -> None:
        self._step, self._fields, self._keeper = step, fields, Module()

    def step(self) -> int:
        return self._step

    def keeper(self) -> Module:
        return self._keeper

    def checkpoint_dir(self) -> None:
        return None

    def saver(self, meter: StepMeter, directory: str | None) -> base.PositionSaver:
        return base.PositionSaver(meter)

    def cannot_save(self, directory: str | None) -> None:
        return None

    def hello_fields(self) -> dict[str, Any]:
        return self._fields

    def instrument(self, meter: StepMeter) -> Any:
        return lambda: None


@pytest.mark.parametrize(
    ("kind", "began"),
    [(AtStep(0), {}), (AtStep(40), None), (AtStep(40, origin={}), {})],
    ids=["at its begin", "trained or loaded before", "train() sets the step anew"],
)
def test_the_first_hello_says_where_it_begins(kind: AtStep, began: dict[str, Any] | None) -> None:
    heard: list[dict[str, Any]] = []

    def make_watch(hello: dict[str, Any], *_: Any, **__: Any) -> NoWatch:
        heard.append(hello)
        return NoWatch()

    shim, module = attach_module._handle(), kind.keeper()
    overrides = {"run": "beta", "tokens_per_step": None}
    call = attach_module._Call(module, base.Options(), overrides, {}, None, make_watch, None)
    attach_module._start(shim, call, kind)
    shim._let_go()
    assert (heard[0].get("origin"), "origin" in heard[0]) == (began, began is not None)
    assert (shim._meter.progress.run, shim._meter.progress.origin) == ("beta", began)
