"""Failure modes of a training's numbers: what it learns, and what it saves."""

from __future__ import annotations

from typing import Final

from governor.text.failure_modes.mode import FailureMode

MODES: Final = (
    FailureMode(
        name="loss-not-a-number",
        title="the loss is no number any more",
        symptom="The loss is NaN or infinite, disappears from the log, or the framework skips one update after "
        "the other. Steps go on at full speed and full price, and no step trains anything.",
        triggers=(
            "nonfinite",
            "loss_vanished",
        ),
        evidence="The rank and step that showed it first, the last finite loss and its step, skipped updates in a "
        "row, and the last checkpoint whose weights are finite (`Last good`).",
        action="The shipped policies halt at the first such loss. The halt saves a suspect checkpoint beside the "
        "good one and never over it.",
        recovery=(
            "Run the resume command of the incident. It goes on from the last good checkpoint, not from the suspect "
            "one.",
            "Go through the runbook for a loss spike (at the end of docs/reference/failure_modes.md): data, then "
            "numbers, then communication.",
            "One rank alone, and another one after the restart: suspect data. The same GPU again: suspect the GPU.",
            "fp16: compare the loss scale's path. It fell before the NaN: lower the learning rate, or train in bf16.",
            "It comes again at the same step: skip those batches, or lower the learning rate, and resume once more.",
        ),
        at_risk="Everything since the last good checkpoint, and the whole price of the machines from the first "
        "bad step until somebody notices. With the halt that is a few steps; over a night it is a night.",
    ),
    FailureMode(
        name="loss-spike",
        title="the loss explodes or drifts upwards",
        symptom="The loss jumps far above its usual level, or rises and does not come back. The gradient norm "
        "often rises some steps earlier.",
        triggers=(
            "loss_spike",
            "loss_divergence",
            "grad_norm",
        ),
        evidence="The loss, its running mean and limit, for how many records it has lasted, and the best level "
        "that the run had reached with its step.",
        action="One spike is noted (response `watch`), because most come back within some 120 steps. A "
        "hundredfold loss twice in a row, or a rise that stays, halts in the policies of the four stages. "
        "The default policy observes both.",
        recovery=(
            "Go through the runbook for a loss spike (at the end of docs/reference/failure_modes.md). It ends in "
            "one of three causes.",
            "Resume from a checkpoint well before the spike, not from the newest one: the optimizer's moments have "
            "seen it.",
            "Skip the batches around it, or lower the learning rate until it has passed.",
            "The loss was healthy all the same (new data, a new term): `costgov incident mark last --false`.",
        ),
        at_risk="Every step since the rise began, and the steps of the older checkpoint that are trained again. A "
        "divergence that is found a day late costs a day of the machines.",
    ),
    FailureMode(
        name="loss-frozen",
        title="the loss repeats one value",
        symptom="The loss is the same to the last digit, step after step.",
        triggers=("loss_frozen",),
        evidence="The value, how often it was repeated, and the longest repetition before.",
        action="The shipped policies warn or observe. To halt is for a policy of your own: some logs round to one "
        "decimal.",
        recovery=(
            "A loss of exactly 0 from Hugging Face's Trainer beside a gradient norm that is NaN: it is a NaN that "
            "is masked. Go on as for loss-not-a-number.",
            "See whether the weights change at all: a learning rate of 0, a frozen module, or an optimizer without "
            "parameters.",
            "See whether the log is what stands still: a table that is filled forward repeats its last value.",
            "Resume from the last checkpoint before the first repetition.",
        ),
        at_risk="Every step since the first repetition trains nothing, at full price.",
    ),
    FailureMode(
        name="loss-stall",
        title="the loss has stopped falling",
        symptom="No block of losses is better than the best one, for thousands of steps.",
        triggers=("loss_stall",),
        evidence="The best block and its step, and how many records have passed since.",
        action="The policies of the four stages warn. Nothing is halted: a run that has converged looks the same.",
        recovery=(
            "Compare with the planned number of tokens: near its end this is convergence, and the run may be halted "
            "by hand.",
            "See the learning rate: a schedule that reached its floor early trains on at that floor.",
            "See the data: an epoch that repeats, or a shard that is read again and again.",
            "`costgov halt RUN --reason converged` saves, and ends the spending.",
        ),
        at_risk="What the run costs from here on, if the tokens that are left buy no loss. Nothing that was "
        "trained is lost.",
    ),
    FailureMode(
        name="overflow-storm",
        title="updates overflow in fp16, and it does not stop",
        symptom="The loss scale falls again and again, or a large part of the updates is skipped. The loss may "
        "look healthy for a while.",
        triggers=("overflow_storm",),
        evidence="The loss scale now and where it was, skipped updates of the window, the rank and the step.",
        action="The default policy observes and would halt after ten steps with a suspect checkpoint.",
        recovery=(
            "Resume from the last good checkpoint in bf16, where the hardware has it: bf16 needs no loss scale.",
            "Stay in fp16: lower the learning rate, clip the gradients, and see which layer's gradients grow.",
            "The scale fell to its minimum: the weights may be broken already. Take an older checkpoint.",
        ),
        at_risk="The skipped updates cost as much as real ones: at 40 % skipped, 40 % of the price buys nothing. "
        "What follows is often a loss that is no number.",
    ),
    FailureMode(
        name="bad-checkpoint",
        title="a checkpoint is torn, not finite, not written or gone",
        symptom="A save fails, its files are not whole, its weights are NaN, or the last good one was deleted. "
        "Training goes on as if nothing were wrong.",
        alarms=(
            "checkpoint_failed",
            "checkpoint_torn",
            "checkpoint_nonfinite",
            "last_good_gone",
            "displaced_nonfinite",
        ),
        evidence="The path and step of each checkpoint that was looked at, what is missing or not finite in it, "
        "and who verified it (`Checkpoint`, `Last good`).",
        action="An alarm. A torn or non-finite checkpoint never counts as good and is never named in a resume command.",
        recovery=(
            "`costgov status --json` names the last good checkpoint (`last_good`). Copy it to where nothing rotates "
            "it away.",
            "See the disk: full, over its quota, or read-only.",
            "Have the run save again while it is healthy, and see that the alarm does not come back.",
            "Weights that are not finite: go on as for loss-not-a-number. The run has been broken since that save "
            "or earlier.",
        ),
        at_risk="All work since the last checkpoint that is good. It grows at the whole price of the run until "
        "the next good one.",
    ),
)
