"""The user's own stop command, for every provider without an adapter here.

Exit 0 of the stop command means accepted, never stopped. Only `verify_command` can confirm that billing has ended.
It is believed once it has said that the machine runs: a check that always says "ended" confirms nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.adapters.machine.own_process import OwnProcess
from governor.adapters.plugins import ConfigError, ConfigKey, Surroundings
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Cloud, Notice, Preflight, StopReply

NAME = "command"
KEYS = (
    ConfigKey("argv", "argv", None, "Stop command, no shell. {incident}, {instance} and {rung} are replaced."),
    ConfigKey("verify_command", "argv", None, "Exit 0: billing has ended, 1: it runs, anything else: unknown."),
    ConfigKey("instance_id", "text", None, "What {instance} becomes."),
    ConfigKey("timeout_s", "seconds", 60.0, "A command that runs longer is killed with everything it started."),
    ConfigKey("stop_bound_s", "seconds", 300.0, "An accepted stop ends billing within this; reserved under a ceiling."),
    ConfigKey("granularity_s", "seconds", 60.0, "The provider bills in units of this."),
    ConfigKey("stays_billed", "texts", (), "What the provider goes on billing after the stop, in your words."),
    ConfigKey("survives_stop", "flag", None, "Whether the local disk outlives the stop."),
)

_PLACEHOLDERS: Final = ("incident", "instance", "rung")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
# Variables for us only: with them a child could answer the service manager in our name.
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID"})
# After SIGKILL. Longer means uninterruptible sleep, which must not hold our worker.
_REAP_S: Final = 5.0

_ENDED, _RUNNING = 0, 1


class CommandCloud:
    name = NAME
    gives_notice = False

    def __init__(self, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        if config["argv"] is None:
            raise ConfigError('cloud.command.argv is missing; write for example ["/usr/local/bin/stop-me"]')
        for key in ("argv", "verify_command"):
            _check_placeholders(key, config[key] or (), config["instance_id"])
        self._argv: tuple[str, ...] = config["argv"]
        self._verify: tuple[str, ...] | None = config["verify_command"]
        self._instance_id: str | None = config["instance_id"]
        self._timeout_s = float(config["timeout_s"])
        self.stop_bound_s = float(config["stop_bound_s"])
        self.granularity_s = float(config["granularity_s"])
        self._stays_billed: tuple[str, ...] = config["stays_billed"]
        self._survives_stop: bool | None = config["survives_stop"]
        asked = json.dumps([self._verify, self._instance_id])
        # No part of the command line itself: the name is persisted, and the line may hold secrets.
        self.billing_source = f"{NAME} {hashlib.sha256(asked.encode()).hexdigest()[:16]}"
        self._environ = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}

    def preflight(self) -> Preflight:
        """Check the commands, and run `verify_command`, which only reads and must find billing running now."""
        missing = [
            f"cloud.command.{key}: {argv[0]} is not an executable file on PATH; install it or correct the path"
            for key, argv in (("argv", self._argv), ("verify_command", self._verify))
            if argv and shutil.which(argv[0], path=self._environ.get("PATH")) is None
        ]
        now = None if missing or self._verify is None else self.billing()
        problems = missing or self._verify_problems(now)
        read_back = f"read back by {self._verify[0]}" if self._verify else "not read back"
        return Preflight(
            # A stop that cannot be read back still stops. A missing or wrong command does not work at all.
            ok=not missing and not (problems and self._verify),
            instance_id=self._instance_id,
            will=f"run {self._argv[0]} ({read_back})",
            stays_billed=self._stays_billed,
            problems=tuple(problems),
            survives_stop=self._survives_stop,
            said_running=now is not None and now.answer is BillingAnswer.RUNNING,
        )

    def stop(self, incident_id: str, rung: int) -> StopReply:
        """Run the stop command once. It must be idempotent: a restarted governor runs it again."""
        outcome = self._run(self._filled(self._argv, incident_id, rung))
        if outcome == 0:
            return StopReply(StopAnswer.ACCEPTED, retryable=False, reason="accepted")
        if isinstance(outcome, int) and outcome > 0:
            return StopReply(StopAnswer.REFUSED, retryable=True, reason=f"exit_{outcome}")
        if isinstance(outcome, int):
            return StopReply(StopAnswer.UNKNOWN, retryable=True, reason=f"signal_{-outcome}")
        if outcome == "timeout":
            return StopReply(StopAnswer.UNKNOWN, retryable=True, reason="timeout")
        # Not started: a mistyped path does not recover, a busy machine (EAGAIN, ENOMEM) does.
        return StopReply(StopAnswer.REFUSED, retryable=outcome in ("EAGAIN", "ENOMEM"), reason=f"not_started_{outcome}")

    def notice(self) -> Notice | None:
        return None

    def other(self, instance_id: str) -> Cloud | None:
        return None

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        """Ask `verify_command`. Without one, the answer is never more than UNKNOWN."""
        # Only the command knows what it means that a machine is unknown.
        del destroyed
        if self._verify is None:
            return BillingReply(BillingAnswer.UNKNOWN, "no_verify_command")
        outcome = self._run(self._filled(self._verify, "", 0))
        if outcome == _ENDED:
            return BillingReply(BillingAnswer.ENDED, "exit_0")
        if outcome == _RUNNING:
            return BillingReply(BillingAnswer.RUNNING, "exit_1")
        if isinstance(outcome, int):
            return BillingReply(BillingAnswer.UNKNOWN, f"exit_{outcome}" if outcome > 0 else f"signal_{-outcome}")
        return BillingReply(BillingAnswer.UNKNOWN, outcome)

    def _verify_problems(self, now: BillingReply | None) -> list[str]:
        if now is None:
            return ["cloud.command.verify_command is not set: a stop can be accepted but never verified"]
        if now.answer is BillingAnswer.RUNNING:
            return []
        return [
            f"cloud.command.verify_command answered {now.provider_state} while this machine runs;"
            " it must exit 1 while billing runs and 0 once it has ended"
        ]

    def _filled(self, argv: Sequence[str], incident_id: str, rung: int) -> list[str]:
        values = {"incident": incident_id, "instance": self._instance_id or "", "rung": str(rung)}
        return [_PLACEHOLDER.sub(lambda match: values[match.group(1)], word) for word in argv]

    def _run(self, argv: list[str]) -> int | str:
        """Return the exit status (negative: the signal), or "timeout", or the errno's name if it cannot start.

        Its output is dropped: it may hold secrets of the command.
        """
        try:
            process = OwnProcess(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,  # A timeout then also ends its children.
                may_leave=True,
            )
        except OSError as error:
            return _errno_name(error)
        try:
            return process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return "timeout"
        finally:
            process.note_left()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The leader is our child and not yet reaped, so its group id cannot have been reused.
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        # In uninterruptible sleep: subprocess reaps it at a later call.
        pass


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "OSError")


def _check_placeholders(key: str, argv: Sequence[str], instance_id: str | None) -> None:
    for name in _PLACEHOLDER.findall(" ".join(argv)):
        if name not in _PLACEHOLDERS:
            known = ", ".join(f"{{{known}}}" for known in _PLACEHOLDERS)
            raise ConfigError(f"cloud.command.{key}: unknown placeholder {{{name}}}; known: {known}")
        if name == "instance" and instance_id is None:
            raise ConfigError(f"cloud.command.{key} uses {{instance}}, but cloud.command.instance_id is not set")


def build(config: Mapping[str, Any], surroundings: Surroundings) -> Cloud:
    return CommandCloud(config, surroundings.environ)
