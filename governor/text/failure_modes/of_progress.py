"""Failure modes of a training's progress: it stands still, it is slow, or it gets nowhere."""

from __future__ import annotations

from typing import Final

from governor.text.failure_modes.mode import FailureMode

MODES: Final = (
    FailureMode(
        name="hang",
        title="no rank makes progress",
        symptom="No step comes any more. GPUs often show 100 %, because they spin in a collective. Nothing is printed.",
        triggers=(
            "hang",
            "log_stalled",
            "silence",
        ),
        evidence="Of each rank: phase, step, last hook, innermost frames, and the last collective with its number "
        "and whether it finished. The rank that is behind the others is named.",
        action="The shipped policies halt where ranks are connected, after a limit that follows the run's own "
        "steps. Without ranks (a log) it is 35 minutes. A deaf trainer is ended without a checkpoint.",
        recovery=(
            "Read the ranks of the incident. The one that is not in the collective of the others is where to look.",
            "Asleep in its data: see that rank's storage and loader workers.",
            "All in the same collective, not finished: see the network and the GPU of the slowest rank (`dmesg`, "
            "XID, links).",
            "Run the resume command. It hangs again at the same rank: leave that GPU or node out.",
            "It was a long save or evaluation: `costgov incident mark last --false`, and raise `checkpoint_limit` "
            "or `eval_limit`.",
        ),
        at_risk="The whole price of the machines until the halt, and the work since the last good checkpoint, "
        "because who hangs cannot save.",
    ),
    FailureMode(
        name="data-starvation",
        title="the GPUs wait for data",
        symptom="A large part of each step is waiting for the next batch, or a GPU stands nearly idle while the "
        "run trains.",
        triggers=(
            "data_starvation",
            "gpu_starvation",
        ),
        evidence="The rank that waits and its share, or how busy its GPU was over the window. In the metrics: the "
        "cause `data_starvation` in seconds and dollars.",
        action="The policies of the four stages halt after minutes of it. The default policy observes.",
        recovery=(
            "Loader workers at 100 % of a core: add workers, or tokenise ahead of time.",
            "Workers that wait for disk or network: stage the shards on local disks, or read larger pieces ahead.",
            "One rank alone: see its node's storage and neighbours. The others only wait for it.",
            "Resume, and compare the cause's share with what it was.",
        ),
        at_risk="The share that waits is the share of the price that buys nothing: half of each step is half of "
        "the bill. What was trained is kept.",
    ),
    FailureMode(
        name="slow-run",
        title="the run is much slower than it was, or than planned",
        symptom="Tokens per second have fallen far below the run's own level, or were below the plan from the "
        "first step on.",
        triggers=(
            "throughput_collapse",
            "slower_than_planned",
        ),
        evidence="The speed of the window, the baseline or the plan that it is held against, and the steps of both.",
        action="The policies of the four stages halt after minutes below 30 to 40 % of the run's own speed. The "
        "default policy observes.",
        recovery=(
            "See which cause has grown in the dashboard or in `costgov_run_time_seconds_total`: data, "
            "communication, straggler, pipeline bubble, optimizer offload, throttling, other tenants, checkpoint.",
            "See the clocks and temperature of the GPUs, and who else is on the node.",
            "By design (longer sequences, a larger batch): `costgov incident mark last --false`, and set the floor "
            "for it.",
            "Resume on another node where nothing explains it.",
        ),
        at_risk="At a third of the speed, a million tokens cost three times the plan, for as long as it lasts. "
        "Nothing that was trained is lost.",
    ),
    FailureMode(
        name="straggler",
        title="one rank slows all the others down",
        symptom="All ranks have the same step time, and one of them spends it computing while the others wait.",
        triggers=("straggler",),
        evidence="The rank, its own time for a step, that of its peers, and what that costs of every rank's step.",
        action="The shipped policies warn. Nothing is halted.",
        recovery=(
            "Look at that rank's GPU: clocks, throttle reasons, temperature, ECC errors, link width.",
            "Look at its CPU: a neighbour on its cores, or a loader that has no workers left.",
            "Move the rank or leave its node out, and resume from the last good checkpoint.",
            "A stage of a pipeline with more work than others: move layers off it. That is no fault of the machine.",
        ),
        at_risk="Every rank pays for the slow one: ten percent of a step is ten percent of the whole bill.",
    ),
    FailureMode(
        name="idle-gpus",
        title="a live run uses no GPU",
        symptom="The run is alive, whatever it says that it does, and none of its GPUs has worked for an hour.",
        triggers=("node_idle",),
        evidence="For how long all GPUs of the run have been idle.",
        action="The shipped policies warn. A node without any run is stopped by `[node] idle_stop`, where that is set.",
        recovery=(
            "Ask its owner: a notebook, a debugger at its prompt, or data that is prepared on a machine with GPUs.",
            "`costgov halt RUN --reason idle`, or `costgov hold RUN 2h --reason TEXT` while it is wanted.",
            "Prepare data on a machine without GPUs.",
        ),
        at_risk="The whole price of the node, for as long as nobody looks.",
    ),
    FailureMode(
        name="restart-loop",
        title="the run is launched again and again and gets nowhere",
        symptom="One attempt after the other ends before it has trained beyond the last one.",
        triggers=("restart_loop",),
        alarms=("breaker_open",),
        evidence="How many attempts in a row, since when, and the step that none of them got beyond. The end of "
        "the attempt before is in `costgov status NAME`.",
        action="The policies of the four stages halt after ten such attempts, and end the launcher with it. The "
        "default policy observes.",
        recovery=(
            "`costgov status NAME` says why the attempt before ended. Go on at the mode of that end.",
            "The same step each time: the checkpoint or the batch there. Resume from an older checkpoint.",
            "The same node each time: leave it out.",
            "While you repair it by hand: `costgov hold RUN 30m --reason TEXT`.",
        ),
        at_risk="Each launch costs its start of all machines: image, imports, weights, data.",
    ),
    FailureMode(
        name="overdue",
        title="the run takes longer than it may",
        symptom="The run, or its present attempt, is older than its policy allows.",
        triggers=("runtime",),
        evidence="Its age and its limit.",
        action="What your rule says. No shipped policy has a limit of time.",
        recovery=(
            "A forgotten run: leave it ended.",
            "A run that needs more: raise the limit in its policy, and run the resume command.",
        ),
        at_risk="The price of the run for each hour beyond its limit.",
    ),
)
