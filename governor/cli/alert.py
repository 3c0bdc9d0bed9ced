"""`costgov alert test`: one alert to every receiver, and the answer of each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from governor.cli.common import (
    OF_THE_COMMANDS,
    Failed,
    config_option,
    exits,
    json_option,
    print_json,
    settings_from,
    show_line,
)

if TYPE_CHECKING:
    from governor.adapters.alerting.tables import ConfiguredReceiver
    from governor.core.alerts.catalogue import Alert


@click.group(short_help="Who receives alarms and halts.", epilog=OF_THE_COMMANDS)
def alert() -> None:
    """Receivers of alerts: the [[alert]] tables of costgov.toml. docs/reference/alerts.md says what they are sent.

    \b
    costgov alert test     try every receiver now
    """


@alert.command(short_help="Send one test alert to every receiver.", epilog=exits())
@click.option("--name", metavar="NAME", help="Only to the receiver of this name.")
@config_option
@json_option
def test(name: str | None, config: Path | None, as_json: bool) -> None:
    """Send one alert named "test" to every receiver, once, and show what each answered.

    What a receiver wants (`only`, `min_severity`) does not matter here. No governor is needed, and none is asked: files
    of secrets are read as whoever calls this, so `sudo -u costgov costgov alert test` tries what the service may. Exit
    code 1 when a receiver did not take it, or when there is none.
    """
    from governor.adapters.alerting.tables import configured_receivers
    from governor.core.alerts.catalogue import of_test
    from governor.core.base.units import WallNs

    settings = settings_from(config)
    found = configured_receivers(settings.alert)
    if not found:
        raise Failed("no receiver is configured: add an [[alert]] table to costgov.toml (docs/reference/alerts.md)")
    chosen = [one for one in found if name in (None, one.name)]
    if not chosen:
        raise click.UsageError(f'there is no receiver "{name}"; known: {", ".join(one.name for one in found)}')
    sent = of_test(settings.node.name, WallNs(time.time_ns()))
    answers = [_ask(one, sent, as_json=as_json) for one in chosen]
    if as_json:
        print_json({"id": sent.alert_id, "receivers": answers})
    failed = [answer["name"] for answer in answers if not answer["taken"]]
    if failed:
        raise Failed(f"not taken by: {', '.join(failed)}")


def _ask(one: ConfiguredReceiver, sent: Alert, *, as_json: bool) -> dict[str, Any]:
    from governor.core.alerts.outbox import Took

    begun = time.monotonic()
    delivery = one.receiver.post(sent)
    taken, took_ms = delivery.took is Took.TAKEN, round((time.monotonic() - begun) * 1000)
    if not as_json:
        said = f"taken ({delivery.reason}, {took_ms} ms)" if taken else f"NOT taken: {delivery.line}"
        show_line(f"{one.name}  {one.kind} at {one.receiver.where}: {said}", "green" if taken else "bold red")
    return {
        "name": one.name,
        "kind": one.kind,
        "where": one.receiver.where,
        "taken": taken,
        "reason": delivery.reason,
        "line": delivery.line if not taken else "",
        "took_ms": took_ms,
    }
