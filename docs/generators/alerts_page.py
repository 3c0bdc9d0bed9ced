"""docs/reference/alerts.md from the kinds' own docstrings and KEYS, and from the table of severities."""

from __future__ import annotations

import inspect
import json
from typing import Any, cast

from governor.adapters import alerts
from governor.adapters.alerting.dispatch import AGAIN_NS, FLUSH_IN_A_HALT_S, FLUSH_S
from governor.adapters.alerts.webhook import document
from governor.core.alerts.catalogue import DEFAULT_SEVERITY, REPEAT_NS, SEVERITIES, Alert, OfIncident, Severity, State
from governor.core.alerts.outbox import AGE_MAX_NS, PAUSE_MAX_NS, PAUSE_MIN_NS, WAITING_MAX
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, WallNs
from governor.core.money.token_price import TokenPrices
from governor.settings.streams import ALERT_RECEIVERS_MAX

PAUSE_MIN_S, PAUSE_MAX_MIN = PAUSE_MIN_NS // NS_PER_S, PAUSE_MAX_NS // NS_PER_MINUTE
AGE_MAX_H, REPEAT_MIN, AGAIN_S = AGE_MAX_NS // NS_PER_HOUR, REPEAT_NS // NS_PER_MINUTE, AGAIN_NS // NS_PER_S

_HEAD = f"""# Alerts

<!-- Drawn from governor/adapters/alerts and governor/core/alerts/catalogue.py by `make docs`: change it there. -->

Every alarm and every state of a halt is sent to the receivers that costgov.toml names, at most {ALERT_RECEIVERS_MAX}:

```toml
[[alert]]
kind = "webhook"
url = "https://alerts.example.org/costgov"
secret_file = "/etc/costgov/pager.secret"    # echo whsec_$(openssl rand -base64 32)
min_severity = "warning"

[[alert]]
kind = "alertmanager"
url = "http://127.0.0.1:9093"
only = ["halt", "needs_human", "rule_*"]

[[alert]]
kind = "slack"
secret_file = "/etc/costgov/slack.secret"    # The line is the webhook's URL.

[[alert]]
kind = "email"
server = "smtp.example.org:587"
sender = "costgov@example.org"
to = ["oncall@example.org"]
user = "costgov"
password_file = "/etc/costgov/mail.password"
min_severity = "critical"
```

- `costgov alert test` sends one alert named "test" to each receiver and prints what each answered.
- `costgov doctor` checks the configuration and sends nothing.
- `costgov status` shows a receiver that takes no alerts.
- The tables are read at the start of the governor. Files of secrets are read anew for each attempt, by the user of the
  service: `chown root:costgov` and mode 0640, or `LoadCredential=` and a path below `/run/credentials/costgov.service`.
- Mail and Slack are for people: of a halt they get one message for each of its states.

| key of every kind | default | meaning |
|---|---|---|
| `kind` | – | One of the kinds below. |
| `name` | the URL's host | In logs and in the metrics' label `receiver`; every receiver has its own. |
| `only` | all | Names of alarms, `"halt"`, or beginnings of names with a star. |
| `min_severity` | `"info"` | `info`, `warning` or `critical`. |

## What is promised, and what is not

- **Nothing waits for an alert**, neither the loop nor a halt. Each receiver has a thread and an outbox of its own.
- **A receiver that does not answer**, or answers 401, 403, 404, 408, 425, 429, 502, 503 or 504, is left alone for
  {PAUSE_MIN_S} s. The pause doubles up to {PAUSE_MAX_MIN} minutes; half of it is random. Its `Retry-After` is honoured up to
  the same bound. Alerts stay in order. An alert that the receiver fails on (another 5xx) is tried again in the same way, behind the
  others. Any other 3xx or 4xx refuses the alert: redirects are not followed.
- **Every attempt has the same id**, also after a restart of the governor in the middle of a halt. A receiver may get an
  alert twice, and recognises it by the id.
- **An alert is dropped** after {AGE_MAX_H} hours. Where {WAITING_MAX} wait, the oldest of the least urgent is dropped. Drops are
  counted by receiver (`costgov_alerts_dropped_total`) and logged once. Waiting alerts are in memory: a governor
  that is killed loses them. At its own end it tries all of them once more, for {FLUSH_S:g} s. In the middle of a halt it tries for
  {FLUSH_IN_A_HALT_S:g} s, because whoever resumes the halt reports it again.
- **Repetitions**: alarms of the same name and run within {REPEAT_MIN} minutes are one alert. The last one's words are sent at their end,
  with the number of repetitions (`repeats`).
- **A halt is reported state by state.** Where an alert lasts (Alertmanager), an open halt is reported again every {AGAIN_S} s, and
  resolved when it is closed (see below). A machine that was stopped reports so when it is up again.
- **Secrets**: no log, metric or error contains one. Of a URL they contain only scheme, host and port. Certificates are verified.
"""

_EXAMPLE = Alert(
    alert_id="msg_6f1c0d5b3d1e4a55a2d2a1f9b7c3e810",
    name="halt",
    severity=Severity.CRITICAL,
    state=State.FIRING,
    wall=WallNs(1_795_262_400 * 10**9),
    node="gpu-17",
    text="run llama is being halted, now ASKED: rank 1 has loss nan at step 60; it was 2.785 at step 59 "
    '(rule "nonfinite")',
    see="costgov incident show llama.gpu-17.1",
    run="llama",
    stage="stage1",
    labels={"team": "pretrain"},
    spend_usd_micros=12_345_678,
    ceiling_usd_micros=300_000_000,
    prices=TokenPrices(57_400, 61_250, 61_250, 56_900),
    incident=OfIncident("llama.gpu-17.1", "ASKED", "loss_nan"),
)

_PAYLOAD = f"""
### The document

```json
{json.dumps(document(_EXAMPLE), indent=2)}
```

| key | meaning |
|---|---|
| `type` | `costgov.alarm`, `costgov.halt` or `costgov.test`. |
| `timestamp` | When it happened, in UTC; of a halt, when it began. |
| `id` | The same over all attempts; also the header `webhook-id`. |
| `name` | The alarm's (below); of a halt `halt`. |
| `severity` | `info`, `warning` or `critical`. |
| `state` | `event` (an alarm), `firing` (an open halt) or `resolved` (a closed one). |
| `node`, `run`, `stage`, `labels` | What it belongs to, as the trainer said; null where there is none. |
| `text` | What happened, for people, and as a rule what to do. |
| `see` | The command that tells more, on that node. |
| `spend_usd`, `ceiling_usd` | Exact dollars of the run as text; null where it is unknown, or there is no ceiling. |
| `usd_per_mtok`, `…_all_in`, `…_useful`, `…_steady` | Likewise, of a million tokens: [four prices](../howto/cost.md#expected-against-actual). Of a halt's alert, as in its report. |
| `incident` | `id`, `stage` and `reason` of the halt; null of an alarm. |
| `ended` | When the halt was closed. |
| `repeats` | How often the alarm repeated itself since it was last sent. |

Later versions add keys. A key never changes its meaning. A receiver that verifies computes the signature over
the bytes that it received, and refuses a `webhook-timestamp` that is minutes away from its own clock.
"""


def render() -> str:
    return _HEAD + "".join(_section(name) for name in alerts.names()) + _severities()


def _section(name: str) -> str:
    module = alerts.module(name)
    rows = [f"| `{key.name}` | {key.kind} | {_literal(key.default)} | {key.meaning} |\n" for key in module.KEYS]
    return (
        f"\n## {name}\n\n{inspect.getdoc(cast(Any, module))}\n"
        f"\n| key | kind | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"
    ) + (_PAYLOAD if name == "webhook" else "")


def _severities() -> str:
    rows = []
    for severity in sorted(Severity, reverse=True):
        names = ", ".join(f"`{name}`" for name, one in sorted(SEVERITIES.items()) if one is severity)
        rows.append(f"| {severity.word} | {names} |\n")
    return (
        "\n## Severities\n\n`rule_<name>` is an alarm of a policy's rule. `budget_<scope>` says that part of a budget "
        f"is used up. Both have the default, {DEFAULT_SEVERITY.word}.\n\n"
        "Beside the command of `costgov run`, the halt of another user's run is the alarm `stranger_halt`, with the "
        "incident and the\nstates of a halt. Every alarm of such a run is a warning at most, and says whose it is.\n\n"
        f"| severity | names |\n|---|---|\n{''.join(rows)}"
    )


def _literal(default: object) -> str:
    return "–" if default is None else f"`{json.dumps(default)}`"
