"""docs/reference/policies.md: the tools around policies. The language of a series and the format of tests are the code's own."""

from __future__ import annotations

import inspect

from governor.timeline import cases, halt_words, series
from governor.timeline.entries import ACTS, KINDS

_HEAD = """# Policies: reading, writing, testing

<!-- Drawn from docs/generators/policies_page.py and governor/timeline by `make docs`: change it there. -->

A policy is a page of TOML: budget, halt, and rules. Each rule names a [trigger](triggers.md) and what follows when it
fires. A rule can say more: several triggers, for how long, from when on, for which runs. A policy can be made of
several files. Both are explained in [rules.md](rules.md). What a policy does can be known before a run depends on it:

| command | answers |
|---|---|
| `costgov policy check FILE…` | Is it valid? What does it do, one line a rule? Every error names file, line and key. |
| `costgov policy explain FILE…` | What does each rule mean, in whole sentences, with its values? |
| `costgov policy test TESTS…` | Does it do what I expect of it? Tests of your own, played in simulated time. |
| `costgov policy replay --policy FILE LOG…` | What would it have done in runs that I have logs of? |
| `costgov policy tune LOG…` | Which limits fit my own healthy runs, with what margin? |
| `costgov policy schema` | What may stand in a policy: the JSON Schema, for an editor. |

All of them are in [cli.md](cli.md). Each takes `--json`, except the schema, which is JSON.

## Limits from your own logs

`costgov policy tune LOG…` replays logs of runs that went well under the rules of a policy (`--policy FILE`). It moves one limit, or the rule's `for`,
at a time until the rule would have reported a log. That value is the worst healthy case. It is found to 6 %, with the rule's own `for` and
the detector itself. `--margin` (default 2) is how many times a limit should be away from the worst healthy case.

- A limit with less than the margin is printed as TOML, to be put over the policy as `NAME.d/tuned.toml`.
- A limit that could be tighter and keep the margin is printed there as a comment: healthy runs may do what few logs do not show.
- Where nothing within 16 times either way makes a difference, or the logs have no such data, nothing is suggested.

The logs are replayed three times, under some variants of every limit. That takes about a minute for 100,000 records.

## In an editor

[policies/policy.schema.json](../../policies/policy.schema.json) (`costgov policy schema` prints it) completes keys and shows
their meaning, units and defaults while you write. Taplo (the extension Even Better TOML in VS Code) takes it from
the first line of the file, as a path beside it or a URL:

```toml
#:schema ./policy.schema.json
```

For whole directories it takes it from `.taplo.toml`. Drop-ins have a schema of their own (`costgov policy schema --drop-in`):

```toml
[[rule]]
include = ["policies.d/*.toml"]
schema = { path = "policy.schema.json" }

[[rule]]
include = ["policies.d/*.d/*.toml"]
schema = { path = "policy-drop-in.schema.json" }
```

The schema knows the shape. Only `costgov policy check` finds contradictions: a ceiling that nothing watches, a plan dearer than
its ceiling.

## Tests

A test is a series of a few lines that stands for a run, with what is expected of the rules. Time is simulated. Rules,
triggers and bookkeeping are the daemon's own, with its limit of halts a day and its holds. An hour of training takes about a second.
[A halt is played to its end](#the-halt) where a case expects something of it. Keep tests beside the
policies, not in the directory that the daemon reads: whatever ends in `.toml` there is a policy. The tests of the shipped policies are
in [policies/tests](../../policies/tests/shipped.toml).

```toml
"""

_KEYS = """```

`costgov policy test tests.toml` says what failed and how, and then exits with 1. `--json` and `--junit FILE` are for programs.
`--only TEXT` plays the cases with that text in their name. `-v` shows what passed, and every verdict.

| key of a case | default | meaning |
|---|---|---|
| `name` | | What it proves, in a few words. |
| `policy` | the file's | A policy file, relative to this one, or a list of which the daemon would choose by `stage` and `labels`. |
| `rules` | the file's | Instead: text of rules (or of a whole policy) in the test itself. |
| `ranks`, `world_size` | 2, `ranks` | How many ranks connect, and how many the run says it has. |
| `log` | false | A metrics log without the shim: no ranks, no beats. |
| `stage`, `labels` | none | What the run says of itself. |
| `series` | | The lines, as a list or as one text. |
| `verdicts` | not looked at | Every verdict, in order: "AT RULE REASON" and, if you like, what follows: {ACTS}. `held` and `breaker` are halts that an operator's hold, or `per_day_max`, stands in the way of. |
| `quiet` | false | No verdict at all. |
| `findings` | none | "AT RULE quiet\\|firing\\|unknown [REASON]": what a rule's trigger says at a time. |
| `readings` | none | The same at the end of the series, by rule. |
| `halt` | not looked at | The timeline of the case's [halts](#the-halt), to their end: "AT WHAT [WORD]". "..." stands for any number of entries. |

### The language of a series

```text
"""


_HALT = """
### The halt

A case that has `halt`, or a line about the world that a halt acts on, is played on until the halt is closed. The engine
decides as in the daemon: what is asked for, when SIGTERM and SIGKILL are sent, whether the machine is stopped, by which means,
and when a person is called. So a test answers whether `grace` covers a save of twelve minutes, or what `destroy` does.

```toml
[[case]]
name = "a save of 12 minutes is cut off by the grace of 10"
policy = "default.toml"
series = ["hello", "steps 900 every 1s loss=2.0", "saves in 12m", "steps 1 every 1s loss=nan"]
halt = ["15m1s asked suspect", "...", "15m1s saving", "25m1s term", "25m2s exited", "...", "25m46s halted"]
```

`halt` has every entry, in order, each at its time. "..." stands for any number of entries, none included. What stands behind a # is for
people. `-v` prints the timeline in this form, to be copied. `halt = []`: no halt. The entries are those of `costgov incident show --json`,
but for the verdict, which `verdicts` has:

| entry | word | meaning |
|---|---|---|
{ENTRIES}

These lines of a series say how the world answers. Without them the ranks are asked and save in 10 s, the processes end 1 s after SIGTERM,
and the run has a machine of its own at a provider, which accepts the stop and bills for 30 s more:

```text
{WORDS}
```

{NOTE}

- A checkpoint's grace is as in the daemon: `grace`, and no longer than the work is worth that is not saved. A run that has trained for a
  minute is not waited for longer.
- From a halt on, as in the daemon, steps are judged and join it, and time alone makes no verdict. Ranks that save take no steps. What the
  lines say of processes that have ended is not played: time passes. `attempt` launches the run again.
- The money of the halt itself, a look at the saved checkpoint, launchers that start ranks again, and checkpoints for which a rule
  asks without a halt are not played. `costgov doctor` checks whether this machine's own provider and rights allow the halt.
"""


def _entries() -> str:
    rows = []
    for what, kind in KINDS.items():
        words = ", ".join(f"`{word}`" for word in kind.words)
        rows.append(f"| `{what}` | {words} | {kind.means} |")
    return "\n".join(rows)


def render() -> str:
    form = inspect.cleandoc(cases.__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0]
    language = inspect.cleandoc(series.__doc__ or "").partition("\n\n")[2]
    lines, _, note = language.rpartition("\n\n")
    keys = _KEYS.replace("{ACTS}", ", ".join(ACTS))
    answers, _, answers_note = inspect.cleandoc(halt_words.__doc__ or "").partition("\n\n")[2].rpartition("\n\n")
    halt = _HALT.replace("{ENTRIES}", _entries()).replace("{WORDS}", inspect.cleandoc(answers))
    halt = halt.replace("{NOTE}", answers_note)
    return _HEAD + inspect.cleandoc(form) + "\n" + keys + inspect.cleandoc(lines) + f"\n```\n\n{note}\n" + halt
