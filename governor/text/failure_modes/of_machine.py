"""Failure modes of money, machines and watching."""

from __future__ import annotations

from typing import Final

from governor.text.failure_modes.mode import FailureMode

MODES: Final = (
    FailureMode(
        name="crash",
        title="the run has crashed, or never trained",
        symptom="The command has ended with an error, or ranks are there and no step comes.",
        alarms=(
            "crashed",
            "no_step",
            "nobody_attached",
        ),
        evidence="The cause of the end, from the first exception of a rank down to the last lines of the output: "
        "out of GPU memory, a GPU that is gone, ECC, NCCL, the kernel's out-of-memory killer, a full "
        "disk.",
        action="An alarm, and the resume command. Nothing is restarted by costgov.",
        recovery=(
            "Read the cause: `costgov status NAME`. What often follows another rank's failure (NCCL, a lost "
            "connection) is named last.",
            "Out of GPU memory: a smaller micro-batch with more accumulation, or recomputation. `costgov plan "
            "MODEL` says what fits.",
            "A GPU that is gone, or ECC: leave the node out, and report it to the provider.",
            "Run the resume command.",
        ),
        at_risk="The work since the last good checkpoint. And the machines stay billed after a crash, until "
        "somebody stops them or `idle_stop` does.",
    ),
    FailureMode(
        name="memory",
        title="memory is nearly used up",
        symptom="Main memory, the control group's limit or a GPU's memory is nearly full. The next allocation may "
        "end a rank without a word.",
        triggers=("memory_pressure",),
        evidence="What is left of how much, of the machine, the control group or the rank.",
        action="The shipped policies warn. Saving needs memory too, so nothing is asked of the trainer.",
        recovery=(
            "Main memory that grows step by step: a leak in the loader or in what the loop keeps. Fewer workers "
            "help at once.",
            "GPU memory: a smaller micro-batch, recomputation, or sharding of more. `costgov plan MODEL` says what "
            "each saves.",
            "Have it saved now, while it can be: `costgov halt RUN --reason memory`, and resume.",
        ),
        at_risk="The work since the last good checkpoint, of all ranks: one that is killed leaves the others in a "
        "collective.",
    ),
    FailureMode(
        name="gpu-hardware",
        title="a GPU is broken",
        symptom="A GPU has fallen off the bus, told an XID error that needs a reset, or counted new uncorrected ECC "
        "errors. Ranks crash on it, hang, or compute what is wrong.",
        triggers=("gpu_fault",),
        evidence="Which GPU, the XID or the number of errors, as the driver says. The time behind a fatal XID or a "
        "lost GPU is the cause `hardware`.",
        action="The shipped policies observe: most such runs end by themselves or hang, and those have their rules.",
        recovery=(
            "Read the XID in NVIDIA's catalogue: it says whether a reset is enough.",
            "Leave the node out, resume elsewhere, and report it to the provider.",
            "After uncorrected ECC errors, go on from a checkpoint of before: the weights may be wrong since.",
        ),
        at_risk="All ranks of the run wait for one GPU; and what was computed since the errors began.",
    ),
    FailureMode(
        name="gpu-held-down",
        title="heat or power hold a GPU down",
        symptom="Clocks are below their maximum, and the driver names heat, a power brake or the power cap.",
        triggers=("gpu_throttled",),
        evidence="Which GPU, the driver's reasons, for how long, its clock and temperature. In the report and the "
        "metrics: the cause `throttling` in seconds and dollars.",
        action="The shipped policies observe. The run goes on, slower.",
        recovery=(
            "Look at the temperatures of the node's GPUs: one that is hotter than its neighbours has a cooling fault.",
            "A power brake or cap is the rack's or the provider's: ask them.",
            "One slow GPU slows every rank: leave the node out if it stays so.",
        ),
        at_risk="The share of the clock that is missing, of every GPU of the run, every hour.",
    ),
    FailureMode(
        name="taken-back",
        title="the machine may go, and work is not saved",
        symptom="The provider has announced that it takes a spot machine back, or too much training lies since "
        "the last checkpoint.",
        triggers=(
            "spot_notice",
            "unsaved_work",
        ),
        alarms=("spot_notice",),
        evidence="What was announced and when, or how much training is not saved, in time and dollars.",
        action="The shipped policies ask for a checkpoint. Nothing is ended: the provider does that.",
        recovery=(
            "After the machine has gone: launch elsewhere under the same name, with the resume command.",
            "Save more often: unsaved work is `price × time since the last save`, and a save is minutes.",
            "No notice comes on this cloud: set the time of `unsaved_work` to what you can lose.",
        ),
        at_risk="The training since the last good checkpoint: at $55 an hour and two hours without a save, $110.",
    ),
    FailureMode(
        name="money-used-up",
        title="the ceiling is reached, or will be before the goal",
        symptom="Spend and the price of stopping reach the ceiling, or the forecast at the goal is above it.",
        triggers=(
            "budget",
            "gate",
        ),
        alarms=(
            "ceiling_ahead",
            "budget_over",
        ),
        evidence="Spend, reserve, ceiling and whose it is; or the forecast at the goal with its range, and what "
        "would fit.",
        action="The shipped policies halt with a good checkpoint, early enough that the halt itself is paid for. "
        "Such a halt is a promise and never falls back.",
        recovery=(
            "`costgov cost` says what the money went to. The metrics have it by cause.",
            "Worth more money: `costgov budget set run:NAME USD --reason TEXT`, or a larger `--ceiling` in the "
            "resume command.",
            "The forecast of a gate does not fit: fewer tokens, or a cheaper configuration (`costgov plan compare`).",
        ),
        at_risk="None beyond the ceiling: it is kept. What was trained is saved by the halt, where the trainer "
        "answers.",
    ),
    FailureMode(
        name="dear-tokens",
        title="a million tokens cost more than planned",
        symptom="The run trains, and each million tokens costs much more than its policy expects.",
        triggers=("usd_per_mtok",),
        evidence="The two prices that are compared, the window, and whether pauses are in them.",
        action="The policies of the four stages warn.",
        recovery=(
            "Look at the causes in the dashboard: the one that has grown is what to repair first.",
            "The steady price is as planned and the all-in price is not: starts, saves and evaluations cost it.",
            "The price of the machine has changed: `costgov prices`.",
            "The plan was wrong: set `[expected]` anew from what the run shows.",
        ),
        at_risk="The drift, times what is left: 20 % over plan with $50,000 to go is $10,000.",
    ),
    FailureMode(
        name="unwatched",
        title="the run trains and rules cannot judge it",
        symptom="A run reports nothing any more, shows no loss, or trains something beside what is watched.",
        alarms=(
            "unwatched",
            "no_loss",
            "log_unjudged",
            "trains_beside",
            "node_unseen",
            "no_policy",
        ),
        evidence="Since when, what is missing, and which processes live.",
        action="An alarm. Ceilings go on counting by the clock. Missing data alone halts nothing.",
        recovery=(
            "`costgov status RUN` says what is missing. `costgov doctor` says what would fail.",
            "A lost connection comes back by itself. A trainer without `attach()` needs the line, or `--log`.",
            "No loss: pass it, or name the log's field.",
        ),
        at_risk="Whatever breaks meanwhile costs the whole price until somebody else notices. Only the ceiling holds.",
    ),
    FailureMode(
        name="halt-not-finished",
        title="a halt needs a person: spending has not ended",
        symptom="The halt's stage is NEEDS_HUMAN, the provider still bills, or processes live on.",
        alarms=(
            "needs_human",
            "still_billed",
            "left_behind",
            "back_after_halt",
            "node_stays_billed",
            "nobody_named",
            "process_table_unreadable",
        ),
        evidence="The timeline: what was tried, what the provider answered, which processes are left. And in "
        "full: what was not observed.",
        action="An alarm to everybody who is named, and the halt goes on trying for as long as the governor lives.",
        recovery=(
            "Stop the machine in the provider's console. That ends the spending whatever else is wrong.",
            "A refused stop: `costgov doctor` names the permission that is missing.",
            "Processes that live on: end them by the pids that the incident names.",
            "`costgov audit` compares the halt with the bill afterwards.",
        ),
        at_risk="The whole price of the machine, every hour, with nothing trained.",
    ),
    FailureMode(
        name="own-condition",
        title="a condition of your own is true",
        symptom="What your policy's expression says.",
        triggers=("expression",),
        evidence="The expression, and the value of each variable in it.",
        action="What your rule says. No shipped policy has such a rule.",
        recovery=(
            "`costgov policy explain FILE` says in whole sentences what the rule means.",
            "Write what to do next to the rule: `resume_with` is shown in the incident.",
            "It was wrong: `costgov incident mark last --false`, and test the rule (`costgov policy test`).",
        ),
        at_risk="What you wrote the rule for.",
    ),
)
