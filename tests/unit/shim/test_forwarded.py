"""What launchers carry to ranks of other nodes: whole, harmless to a shell, and no word of one machine's socket."""

from __future__ import annotations

import base64
import json
import re
import subprocess

import pytest

from trainer_shim.connection.forwarded import CHARS_MAX, INSIDE, VARIABLE, boot_id, told, with_forwarded
from trainer_shim.launch import is_required

SAID = {
    "COSTGOV_RUN": "night",
    "COSTGOV_LABELS": "team=$(id > /tmp/x),owner=\"a b\";`c`\n'd' \\ %n ü \udcff",
    "COSTGOV_REQUIRED": "1",
}
OTHERS = {"PATH": "/bin", "COSTGOV_SOCKET": "/home/a/s", INSIDE: "night", "COSTGOV_MARK": "7"}


def elsewhere(value: str) -> str:
    """As a machine with another boot id has told it."""
    _, *rest = json.loads(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)))
    return written(["another", *rest])


def written(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def value_of(environ: dict[str, str]) -> str:
    value = told(environ)
    assert value is not None
    return value


def test_no_character_of_it_means_anything_to_a_shell() -> None:
    value = value_of({**SAID, **OTHERS})
    assert re.fullmatch(r"[A-Za-z0-9_-]+", value)
    # As DeepSpeed writes it: unquoted, and in double quotes.
    shell = subprocess.run(
        ["/bin/sh", "-c", f'export A={value}; export B="{value}"; printf "%s %s" "$A" "$B"'],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    assert shell.stdout.decode() == f"{value} {value}"


def test_a_rank_that_has_nothing_else_reads_what_was_said_and_no_more() -> None:
    value = value_of({**SAID, **OTHERS})
    for forwarded in (value, elsewhere(value)):
        assert with_forwarded({VARIABLE: forwarded}) == {**SAID, VARIABLE: forwarded}


def test_what_the_rank_has_itself_counts() -> None:
    own = {VARIABLE: elsewhere(value_of(SAID)), "COSTGOV_RUN": "day"}
    assert with_forwarded(own)["COSTGOV_RUN"] == "day"


def test_below_costgov_run_itself_nothing_is_brought_back() -> None:
    own = {VARIABLE: value_of(SAID), INSIDE: "night"}
    assert with_forwarded(own) == own


def test_another_machine_does_not_look_for_the_socket_of_this_one() -> None:
    """srun passes the whole environment: the path would be the only place that is tried."""
    inherited = {**SAID, **OTHERS}
    here, there = value_of(inherited), elsewhere(value_of(inherited))
    assert with_forwarded({**inherited, VARIABLE: here})["COSTGOV_SOCKET"] == "/home/a/s"
    assert "COSTGOV_SOCKET" not in with_forwarded({**inherited, VARIABLE: there})
    own = with_forwarded({**inherited, VARIABLE: there, "COSTGOV_SOCKET": "/run/own"})
    assert own["COSTGOV_SOCKET"] == "/run/own", "a person has named one for that node"


def test_ranks_elsewhere_refuse_to_train_unwatched_too() -> None:
    assert is_required({VARIABLE: elsewhere(value_of(SAID))})
    assert not is_required({VARIABLE: elsewhere(value_of({"COSTGOV_RUN": "night"}))})


def test_too_much_is_not_told_at_all() -> None:
    assert told({"COSTGOV_LABELS": "x" * CHARS_MAX}) is None


@pytest.mark.parametrize(
    "value",
    [
        "?", "ü", "x" * (CHARS_MAX + 4), '"e30"', written({}), written([1, {}, {}]), written(["", {}]),
        written(["", {"PATH": "/evil"}, {}]), written(["", {"LD_PRELOAD": "x"}, {}]), written(["", {}, {"HOME": "x"}]),
        written(["", {"COSTGOV_RUN": 7}, {}]), written(["", {"COSTGOV_RUN": "a\0b"}, {}]), written("[" * 9),
        base64.urlsafe_b64encode(b"[" * 20_000).decode().rstrip("="),
    ],
)  # fmt: skip
def test_what_is_not_ours_is_left_out_and_said(value: str, capfd: pytest.CaptureFixture[str]) -> None:
    environ = {VARIABLE: value, "COSTGOV_RUN": "r"}
    assert with_forwarded(environ) == environ
    assert capfd.readouterr().err.count(VARIABLE) == 1


def test_this_machine_has_a_boot_id() -> None:
    assert len(boot_id()) == 36
