"""docs/reference/failure_modes.md: the catalogue that incidents use as well, the rules that find each mode, and a runbook."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from governor.text.failure_modes import MODES
from governor.text.failure_modes.mode import FailureMode

POLICIES = Path(__file__).parents[2] / "policies"
SHIPPED = ("default", "stage1-1b-dense", "stage2-3b-moe-small", "stage3-8b-dense-deep", "stage4-70b-moe-large")

_HEAD = """# Failure modes

<!-- Drawn from governor/text/failure_modes by `make docs`: change it there. -->

How trainings fail, how that is found, and what to do next. `costgov incident show` and the incident's report name the
mode of each halt, from the same catalogue. Halts that a person asked for, the stop of an unused node and a run that is
complete have none.

- **Found by** names [triggers](triggers.md), the rules of shipped policies that use them, and [alarms](alerts.md#severities).
- **Rules**: *halts*, *warns*, *saves* (asks for a checkpoint) and *notes* are what a rule does. *observes* says what it would do, and does nothing.
- The alert rules for Prometheus link to these headings ([monitoring](../howto/monitoring.md)).

| mode | what it is |
|---|---|
"""

_RUNBOOK = """
## Runbook: a loss spike

For [loss-spike](#loss-spike) and [loss-not-a-number](#loss-not-a-number). Each question has a place where its answer is. Ask them in this
order: data is the cheapest to rule out, and a replay answers most of it.

Before anything else: is money still being spent? `costgov status`. The run is halted, or it is not. If it is not and the loss does not
come back within some 120 steps, `costgov halt RUN --reason "loss spike"` saves a checkpoint and ends the spending.

1. **Which rank showed it first?** The text of the incident names it (`costgov incident show last`).
   - One rank alone: go to *data* (its batch), then to *communication* (its GPU).
   - All ranks in the same step: go to *data*, then to *numbers*.
2. **Data.** Resume from the last good checkpoint with the same order of data, up to the step of the spike.
   - It comes again at the same step: it is these batches, or these batches at these weights.
     - Look at them: empty or cut documents, one token repeated, another language or encoding, a shard of another tokenizer, labels that are all masked.
     - Resume from a checkpoint before it, and skip them. PaLM went back some 100 steps and skipped 200 to 500 batches; the spike did not come back
       ([Chowdhery et al. 2022](https://arxiv.org/abs/2204.02311), section 5.1). The same batches at other weights did no harm there, so keep them for later.
   - It does not come again: it was not the data alone. Go on at 3.
   - It comes at a boundary (a new epoch, shard or mixture): compare the loss by source. A new level is no spike: `costgov incident mark last --false`.
3. **Numbers.** Look at what came before the spike: `costgov export RUN` has loss, gradient norm and loss scale step by step, as far as the trainer reports them.
   - The gradient norm rose for some steps first: the learning rate is too high for here. Lower it, or lengthen the warm-up; clip at 1.0.
     OPT-175B lowered the learning rate and went on from an earlier checkpoint ([Zhang et al. 2022](https://arxiv.org/abs/2205.01068), section 2.5).
   - The loss scale fell step by step, or updates were skipped: fp16 overflows. Go on as for [overflow-storm](#overflow-storm), or train in bf16.
   - It is FP8 or NVFP4: resume the same steps in bf16. It is gone there: fall back for the layers that the precision's rules name ([low precision](low_precision.md)).
   - The loss rose slowly, without a jump: attention logits or output logits grow. QK-norm, z-loss or weight decay hold them.
   - A checkpoint, a code change or a driver is newer than the last healthy steps: resume with the old one.
4. **Communication and hardware.** The same step gives another result on the same data: something computes wrongly, or the ranks disagree.
   - Compare a checksum of the weights over data-parallel ranks, where each has all of them (DDP, ZeRO-1 and -2): they must be equal bit by bit. They differ: the rank that differs is the suspect.
   - `dmesg` and `nvidia-smi -q -d ECC` on its node: XID, ECC, a link that was retrained.
   - Resume without that node. It is gone: the node goes to its provider, not back into the pool.
   - Nothing is found, and it comes at random steps: silent corruption. Run the provider's burn-in on each node, two by two.
5. **Say what it was.** `costgov incident mark last --right --note "shard 17 was cut"`. The next person finds it in `costgov incident marks`.

What it costs meanwhile: each replay costs the steps from the checkpoint to the spike, times the price of a step. `costgov cost` has the price; on a small part of
the machines it is cheaper, if the batch can be kept.
"""

_DOES = {"halt": "halts", "warn": "warns", "checkpoint": "saves", "watch": "notes"}


def render() -> str:
    rows = "".join(f"| [{mode.name}](#{mode.name}) | {mode.title[0].upper()}{mode.title[1:]}. |\n" for mode in MODES)
    runbook = (
        "| [Runbook: a loss spike](#runbook-a-loss-spike) | Data, numbers or communication: a tree of questions. |\n"
    )
    return _HEAD + rows + runbook + "".join(_section(mode) for mode in MODES) + _RUNBOOK


def rules_of(trigger: str) -> list[str]:
    """What each shipped rule with this trigger is and does, once for all policies that agree."""
    found: dict[tuple[str, str], list[str]] = {}
    for policy, name, triggers, does in _rules():
        if trigger in triggers:
            found.setdefault((name, does), []).append(policy)
    return [f"`{name}` {does} in {_policies(policies)}" for (name, does), policies in found.items()]


def _rules() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    for policy in SHIPPED:
        text = tomllib.loads((POLICIES / f"{policy}.toml").read_text(encoding="utf-8"))
        for rule in text["rule"]:
            triggers = tuple(one["trigger"] for one in rule.get("all", [rule]))
            is_observed = rule.get("mode", text["policy"]["mode"]) == "observe"
            yield policy, rule["name"], triggers, "observes" if is_observed else _DOES[rule["response"]]


def _policies(names: list[str]) -> str:
    if len(names) == len(SHIPPED):
        return "all shipped policies"
    if names == list(SHIPPED[1:]):
        return "those of the four stages"
    return ", ".join(f"`{name}`" for name in names)


def _section(mode: FailureMode) -> str:
    found = "".join(f"- {line}\n" for line in _found_by(mode))
    steps = "".join(f"{number}. {step}\n" for number, step in enumerate(mode.recovery, 1))
    return (
        f"\n## {mode.name}\n\n{mode.title[0].upper()}{mode.title[1:]}.\n\n**Symptom.** {mode.symptom}\n\n**Found by.**\n\n"
        f"{found}\n**Evidence.** {mode.evidence}\n\n"
        f"**What costgov does.** {mode.action}\n\n**What to do.**\n\n{steps}\n**Dollars at risk.** {mode.at_risk}\n"
    )


def _found_by(mode: FailureMode) -> Iterator[str]:
    for trigger in mode.triggers:
        rules = "; ".join(rules_of(trigger)) or "no shipped policy has such a rule"
        yield f"trigger [`{trigger}`](triggers.md#{trigger}): {rules}"
    if mode.alarms:
        yield f"alarms: {', '.join(f'`{name}`' for name in mode.alarms)}"
