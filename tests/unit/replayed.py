"""`costgov policy replay` as a test starts it, and what it told."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from governor.cli.policy.replay import replay


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments], stdin)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]
