"""Incidents of every kind that a report must tell well. Shared by the golden tests and their regeneration."""

from __future__ import annotations

import math
from typing import Any

MS = 1_000_000
S = 1_000 * MS
OPENED_MONO = 5_000 * S
OPENED_WALL = 1_780_000_000 * S
STACK = ["model.py:attention:211", "model.py:forward:98", "module.py:_call_impl:1775", "engine.py:forward:2215"]


def entry(at_ns: int, what: str, times: int = 1, **detail: Any) -> dict[str, Any]:
    told = {"mono_ns": OPENED_MONO + at_ns, "wall_ns": OPENED_WALL + at_ns, "what": what, "detail": detail}
    return {**told, "times": times} if times > 1 else told


def rank(number: int, **over: Any) -> dict[str, Any]:
    collective = {"op": "all_reduce", "count": 412, "entered_ns": 1, "done": True}
    row = {"rank": number, "pid": 4100 + number, "connected": True, "phase": "train", "step": 41}
    row |= {"last_hook": "backward", "device_wait": None, "stack": STACK, "collective": collective}
    return row | over


def _healthy_timeline() -> list[dict[str, Any]]:
    return [
        entry(0, "verdict", rule="nan", reason="loss_nan", text="loss is NaN at step 41"),
        entry(400_000, "asked", checkpoint="suspect"),
        entry(2 * MS, "received", rank=0),
        entry(4 * MS, "received", rank=1),
        entry(20 * MS, "agreed", rank=0, step=43),
        entry(21 * MS, "agreed", rank=1, step=43),
        entry(160 * MS, "saving", rank=0, step=43),
        entry(170 * MS, "saving", rank=1, step=43),
        entry(1_839 * MS, "saved", rank=0, step=43),
        entry(1_840 * MS, "rank_saved", rank=1, step=43),
        entry(1_841 * MS, "term"),
        entry(1_902 * MS, "checkpoint_read", whole=True, files=7, hashed=7, reason=""),
        entry(3_200 * MS, "exited"),
        entry(3_201 * MS, "stop_requested", rung=0),
        entry(3_400 * MS, "stop_accepted", reason="accepted"),
        entry(4_400 * MS, "billing", times=3, state="stopping"),
        entry(7_410 * MS, "verified", state="stopped"),
        entry(7_410 * MS, "halted"),
    ]


def _checkpoint() -> dict[str, Any]:
    path = "/data/run7/checkpoints/suspect-step43"
    return {
        "path": path,
        "manifest": f"{path}/costgov-manifest.json",
        "files": 7,
        "bytes": 12_345_678,
        "hashed": True,
        "kind": "suspect",
        "step": 43,
        "tokens_total": 22_544_384,
        "verified_by": "governor",
        "hashes_equal": 7,
    }


def nan_halt() -> dict[str, Any]:
    """The whole sequence, as a healthy node runs it."""
    return {
        "incident_id": "run7.gpu-17.1",
        "run": "run7",
        "uid": 1000,
        "attempt": "a1",
        "stage": "stage1",
        "policy": "stage1-1b-dense",
        "rule": "nan",
        "trigger": "nonfinite",
        "reason": "loss_nan",
        "text": "loss is NaN at step 41",
        "evidence": {"loss": math.nan, "last_finite_loss": 2.3411, "steps": 1},
        "kind": "suspect",
        "opened_wall_ns": OPENED_WALL,
        "opened_mono_ns": OPENED_MONO,
        "closed_wall_ns": OPENED_WALL + 7_410 * MS,
        "boot_id": "b0",
        "node": "gpu-17",
        "cloud": "aws",
        "instance_id": "i-0abc",
        "operator_uid": None,
        "step": 41,
        "loss": math.nan,
        "tokens_total": 21_495_808,
        "halt_stage": "HALTED",
        "halt": {},
        "plan": {"stop": "INSTANCE", "grace_ns": 35 * S, "checkpoint": "suspect"},
        "targets": [
            {"pid": 4099, "start_ticks": 1, "boot_id": "b0", "role": "launcher"},
            *({"pid": 4100 + n, "start_ticks": 1, "boot_id": "b0", "role": "rank"} for n in range(2)),
        ],
        "timeline": _healthy_timeline(),
        "agreed_step": 43,
        "checkpoint": _checkpoint(),
        "last_good": {"step": 30, "path": "/data/run7/checkpoints/step30"},
        "spend_usd_micros": 1_234_567,
        "spend_at_verdict_usd_micros": 1_189_000,
        "usd_micros_per_mtok": 57_400,
        "usd_micros_per_mtok_all_in": 61_250,
        "usd_micros_per_mtok_useful": 61_250,
        "spend_rate_usd_micros_per_hour": 22_000_000,
        "price_source": "contract of 2026-03",
        "stays_billed": ["EBS volume vol-1 (100 GiB)"],
        "resume": "deepspeed --num_gpus 2 train.py --run run7",
        "ranks": [rank(0), rank(1, last_hook="comm:all_reduce")],
        "undurable": False,
        "pages": [],
    }


def ceiling_of_a_trainer() -> dict[str, Any]:
    """A ceiling is reached, and the script is a Trainer's: the command alone would begin anew and be halted."""
    good = "/data/run7/output/checkpoint-43"
    return nan_halt() | {
        "incident_id": "run7.gpu-17.3",
        "rule": "budget",
        "trigger": "budget",
        "reason": "ceiling_reached",
        "text": "spend $3.00 plus $22.00 reserved for the halt reaches the ceiling $25.00",
        "evidence": {
            "scope": "run:run7",
            "spend_usd_micros": 3_000_000,
            "reserve_usd_micros": 22_000_000,
            "ceiling_usd_micros": 25_000_000,
        },
        "kind": "good",
        "loss": 2.25,
        "framework": "hf",
        "plan": {"stop": "INSTANCE", "grace_ns": 35 * S, "checkpoint": "good"},
        "timeline": [
            entry(0, "verdict", rule="budget", reason="ceiling_reached", text="the ceiling $25.00 is reached"),
            entry(400_000, "asked", checkpoint="good"),
            *_healthy_timeline()[2:],
        ],
        "checkpoint": _checkpoint() | {"kind": "good", "path": good},
        "last_good": {"step": 43, "path": good},
        "spend_usd_micros": 3_220_000,
        "resume": "costgov run --ceiling 25 --name run7 -- python train.py",
    }


def gate_of_a_trainer() -> dict[str, Any]:
    """After twenty steps it is sure that the run lands above its ceiling."""
    text = (
        "after 20 steps the run lands at $41.20 ($38.05 to $44.35) at its goal of 20,000 steps, above the ceiling "
        "$25.00 less $0.7500 for its halt; what would do: a ceiling from $45.10 on, or a goal of 10,901 steps"
    )
    return ceiling_of_a_trainer() | {
        "incident_id": "run7.gpu-17.4",
        "rule": "gate",
        "trigger": "gate",
        "reason": "gate",
        "text": text,
        "evidence": {
            "landing_usd_micros": 41_200_000,
            "landing_low_usd_micros": 38_050_000,
            "landing_high_usd_micros": 44_350_000,
            "limit_usd_micros": 24_250_000,
            "ceiling_usd_micros": 25_000_000,
            "reserve_usd_micros": 750_000,
            "enough_usd_micros": 45_100_000,
            "goal": 20_000,
            "goal_unit": "steps",
            "would_fit": 10_901,
            "steps": 20,
            "step_times": 19,
        },
        "timeline": [
            entry(0, "verdict", rule="gate", reason="gate", text=text),
            entry(400_000, "asked", checkpoint="good"),
            *_healthy_timeline()[2:],
        ],
        "spend_usd_micros": 220_000,
        "spend_at_verdict_usd_micros": 210_000,
        "resume": "costgov run --ceiling 25 --gate 20steps --name run7 -- python train.py",
    }


def newest_not_finite() -> dict[str, Any]:
    """A NaN that no loss has shown is in the newest checkpoint that the Trainer saved by itself."""
    output = "/data/run7/output"
    harmed = {"step": 40, "path": f"{output}/checkpoint-40", "nonfinite": "model.safetensors: lm_head.weight"}
    last_good = {
        "step": 20, "path": f"{output}/checkpoint-20", "unsampled": "most of its bytes: model.npz",
        "passed_over": [harmed, {"step": 30, "path": f"{output}/checkpoint-30", "gone": "is no longer there"}],
    }  # fmt: skip
    return nan_halt() | {"incident_id": "run7.gpu-17.7", "framework": "hf", "last_good": last_good}


def none_is_finite() -> dict[str, Any]:
    """And in those before it."""
    last_good = newest_not_finite()["last_good"]
    harmed, gone = last_good["passed_over"]
    return newest_not_finite() | {"incident_id": "run7.gpu-17.8", "last_good": harmed | {"passed_over": [gone]}}


BEHIND = "default_pg: ranks 0, 2 entered all_reduce seq 412; rank 1 has not (last, rank 1: all_reduce seq 411)"


def _behind() -> dict[str, Any]:
    """What ranks showed at the halt. A name may hold anything printable."""
    last = {"operation": "nccl:all_reduce", "state": "started", "over": False}
    ranks = {str(rank): {**last, "number": 411 if rank == 1 else 412} for rank in range(3)}
    group = {"group": "0/default_pg", "behind": [1], "ranks": ranks, "text": BEHIND}
    odd = {"group": "1/`x`<b>", "behind": [], "ranks": {}, "text": "`x`<b>: ranks 0, 1, 2 entered barrier seq 7 last"}
    return {"groups": [group, odd], "groups_total": 3, "problems": {"3": "no answer"}}


def hang_deaf() -> dict[str, Any]:
    """Nobody answers the letter, the price is unknown, no cloud: the least that can be known."""
    stuck = {"op": "all_reduce", "count": 978, "entered_ns": 1, "done": False}
    return nan_halt() | {
        "incident_id": "run7.gpu-17.2",
        "rule": "hang",
        "trigger": "hang",
        "reason": "no_progress",
        "text": "no rank has moved for 74 s (limit 60 s); slowest: rank 1 in wait",
        "evidence": {"collectives": _behind()},
        "kind": "good",
        "closed_wall_ns": OPENED_WALL + 81 * S,
        "cloud": "none",
        "instance_id": None,
        "loss": 2.25,
        "plan": {"stop": "PROCESSES", "grace_ns": 60 * S, "checkpoint": "good"},
        "timeline": [
            entry(0, "verdict", rule="hang", reason="no_progress", text="no rank has moved for 74 s (limit 60 s)"),
            entry(1 * MS, "asked", checkpoint="good"),
            entry(60 * S, "term"),
            entry(60 * S, "collectives", text=f"{BEHIND}; nothing from rank 3"),
            entry(70 * S, "kill"),
            entry(71 * S, "respawned", pids=[4321]),
            entry(71 * S, "kill"),
            entry(81 * S, "exited"),
            entry(81 * S, "unsure", processes=[{"pid": 4711, "command": "redis-server\x1b[2J --port 6379"}]),
            entry(81 * S, "halted"),
        ],
        "agreed_step": None,
        "checkpoint": None,
        "spend_rate_usd_micros_per_hour": None,
        "spend_usd_micros": 0,
        "spend_at_verdict_usd_micros": 0,
        "usd_micros_per_mtok": None,
        "usd_micros_per_mtok_all_in": None,
        "usd_micros_per_mtok_useful": None,
        "price_source": None,
        "stays_billed": ["this machine: no cloud is configured"],
        "resume": None,
        "ranks": [
            rank(0, stack=[], collective=None, phase=None, step=None, last_hook=None, connected=False),
            rank(1, device_wait="wait", collective=stuck, stack=STACK * 4),
        ],
    }


def stop_refused() -> dict[str, Any]:
    """Not finished: the provider refuses, and the journal was late."""
    case = nan_halt()
    reason = "permission denied for uid 990"
    unread = entry(1_902 * MS, "checkpoint_read", whole=None, files=0, hashed=0, reason=reason)
    refused = [entry(3_300 * MS, "stop_refused", reason="UnauthorizedOperation")]
    pages = [entry(3_400 * MS, "page", reason="the provider refuses the stop: UnauthorizedOperation")]
    return case | {
        "incident_id": "run7.gpu-17.3",
        "closed_wall_ns": None,
        "halt_stage": "NEEDS_HUMAN",
        "undurable": True,
        "timeline": [
            *case["timeline"][:11],
            unread,
            *case["timeline"][12:-4],
            *refused,
            *pages,
            entry(9 * S, "restored", stage="NEEDS_HUMAN"),
        ],
        "checkpoint": case["checkpoint"] | {"verified_by": "trainer", "kind": "good", "hashed": False},
        "pages": ["the provider refuses the stop: UnauthorizedOperation"],
    }


def operator_halt_torn() -> dict[str, Any]:
    """A person asked for it; the checkpoint is torn; a hostile reason; a long, quarrelsome provider."""
    case = nan_halt()
    quarrel = []
    for n in range(20):
        quarrel.append(entry((10 + n) * S, "stop_requested", rung=min(n // 10, 2)))
        quarrel.append(entry((10 + n) * S + 30 * MS, "stop_unknown", reason="timeout"))
    return case | {
        "incident_id": "run7.gpu-17.4",
        "operator_uid": 1000,
        "rule": "operator",
        "policy": "operator",
        "trigger": "operator",
        "reason": "operator",
        "text": "wrong data | \x1b[2J`rm`\nsecond line",
        "timeline": [
            entry(0, "verdict", rule="operator", reason="operator", text="wrong data | \x1b[2J`rm`\nsecond line"),
            *case["timeline"][1:11],
            entry(1_902 * MS, "checkpoint_read", whole=False, files=6, hashed=6, reason="rank1.pt: size differs"),
            entry(3_200 * MS, "exited"),
            *quarrel,
            entry(61 * S, "verified", state="terminated"),
            entry(61 * S, "halted"),
        ],
        "checkpoint": case["checkpoint"] | {"verified_by": "nobody", "torn": "rank1.pt: size differs"},
        "closed_wall_ns": OPENED_WALL + 61 * S,
    }


def rebooted() -> dict[str, Any]:
    """The machine went down in the middle of it and came up again."""
    case = nan_halt()
    up = {"mono_ns": 0, "wall_ns": OPENED_WALL + 3_600 * S, "what": "superseded_by_reboot"}
    return case | {
        "incident_id": "run7.gpu-17.5",
        "halt_stage": "superseded_by_reboot",
        "closed_wall_ns": OPENED_WALL + 3_600 * S,
        "timeline": [*case["timeline"][:-3], up | {"detail": {"was": "VERIFYING", "boot_id": "b0"}}],
    }


def node_stopped() -> dict[str, Any]:
    """Nobody used the node: no run, no checkpoint, nobody to end."""
    why = "nobody has used this node for 15m 0s (idle_stop of costgov.toml)"
    nothing = {"step": None, "loss": None, "tokens_total": None, "checkpoint": None, "last_good": None, "resume": None}
    return nan_halt() | nothing | {
        "incident_id": "@node.gpu-17.2",
        "run": "@node",
        "uid": 0,
        "attempt": "",
        "stage": None,
        "policy": "",
        "rule": "idle_stop",
        "trigger": "node_idle",
        "reason": "node_idle",
        "text": why,
        "evidence": {"idle_ns": 900 * S, "limit_ns": 900 * S, "last_runs": ["run7", "run8"]},
        "kind": "none",
        "targets": [],
        "ranks": [],
        "usd_micros_per_mtok": None,
        "usd_micros_per_mtok_all_in": None,
        "usd_micros_per_mtok_useful": None,
        "spend_at_verdict_usd_micros": 5_500_000,
        "spend_usd_micros": 5_545_000,
        "timeline": [
            entry(0, "verdict", rule="idle_stop", reason="node_idle", text=why),
            entry(0, "nobody_here"),
            entry(0, "stop_requested", rung=0),
            entry(200 * MS, "stop_accepted", reason="accepted"),
            entry(2_300 * MS, "billing", times=2, state="stopping"),
            entry(7_410 * MS, "verified", state="stopped"),
            entry(7_410 * MS, "halted"),
        ],
    }  # fmt: skip


def node_kept() -> dict[str, Any]:
    """Somebody came before the stop was accepted."""
    case = node_stopped()
    return case | {
        "incident_id": "@node.gpu-17.3",
        "halt_stage": "abandoned",
        "closed_wall_ns": OPENED_WALL + 3_250 * MS,
        "timeline": [
            *case["timeline"][:3],
            entry(400 * MS, "stop_unknown", reason="timeout"),
            entry(3_250 * MS, "abandoned", was="STOPPING", who="run run9"),
        ],
    }


CASES = {
    case.__name__: case
    for case in (
        nan_halt,
        newest_not_finite,
        none_is_finite,
        ceiling_of_a_trainer,
        gate_of_a_trainer,
        hang_deaf,
        stop_refused,
        operator_halt_torn,
        rebooted,
        node_stopped,
        node_kept,
    )
}
