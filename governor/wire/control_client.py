"""The client's side of the control socket. Standard library only, so that commands start fast."""

from __future__ import annotations

import errno
import glob
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.printable import printable
from governor.wire.answer_shapes import ANSWERS, sifted
from governor.wire.peers import SYSTEM_DIRECTORY, doubt, user_directories

SYSTEM_SOCKET: Final = f"{SYSTEM_DIRECTORY}/control.sock"
# Twice what a governor sends. Anything longer does not come from a governor.
RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
GOVERNORS_MAX: Final = 16  # One `costgov run` beside each GPU of the widest node.
TIMEOUT_S: Final = 5.0  # A live governor answers within one turn of its loop (250 ms).
INCIDENTS_MAX: Final = 1_000  # A journal retains no more of them.
UNIX_SOCKETS: Final = "/proc/net/unix"  # Everybody may read it.
_FLAGS_FIELD, _PATH_FIELD = 3, 7
_LISTENS: Final = 0x10000  # __SO_ACCEPTCON
_CHUNK_BYTES: Final = 64 * 1024
# What a call gets after the deadline, so that an answer already there is still read.
_LEAST_S: Final = 0.001
_UCRED: Final = struct.Struct("@iII")
_TIMEVAL: Final = struct.Struct("@ll")

# Requests that act, and the command that shows whether one was taken.
_SHOWN_BY: Final = {
    "halt": "status", "hold": "status", "forget": "status", "budget_set": "budget list", "budget_clear": "budget list",
    "incident_mark": "incident marks", "rule_rearm": "incident marks",
}  # fmt: skip
# Which of several refusals is told: the higher one. Any other code is 1.
_RANK: Final = {"stranger": -1, "no_such_run": 0, "unsure": 2}

Snapshot = Mapping[str, Any]


class Found(str):
    """A path that nobody named: who listens there has yet to show that it is a governor. A plain `str` was named."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `code` is "" if ok, else the governor's code or ours: no_governor, stranger, silent, unsure, garbled.

    unsure: the request was sent, and may have been taken. `error` is one printable line, and so is each of `left_out`:
    rows of the answer that cannot be shown, without which `data` is.
    """

    ok: bool
    data: Any = None
    error: str = ""
    code: str = ""
    left_out: tuple[str, ...] = ()


def socket_paths(
    environ: Mapping[str, str], system_socket: str = SYSTEM_SOCKET, run: str | None = None
) -> tuple[str, ...]:
    """Return where a governor may listen, first choice first.

    A path in the environment is the only choice; without one, the system's and the user's paths are, each as `Found`.
    The variables are those of the settings, so a governor started in the same environment uses the same path. A
    `costgov run` that only others may talk to has no say in what is asked, unless its name is `run`'s.
    """
    given = environ.get("COSTGOV_PATHS__CONTROL_SOCKET") or environ.get("COSTGOV_CONTROL")
    if given:
        return (given,)
    directory = environ.get("COSTGOV_PATHS__RUNTIME_DIR")
    if directory:
        return (f"{directory}/control.sock", *_run_sockets(directory, run))
    system = os.path.dirname(system_socket)
    directories = tuple(dict.fromkeys((system, *user_directories(environ, os.geteuid()))))
    of_runs = [found for one in directories for found in _run_sockets(one, run)]
    return tuple(map(Found, (*(f"{one}/control.sock" for one in directories), *of_runs)))


def _run_sockets(runtime_dir: str, run: str | None) -> list[str]:
    """The governors of `costgov run`, each in its own directory, which has the command's name."""
    found = sorted(glob.glob(f"{glob.escape(runtime_dir)}/runs/*/control.sock"))
    asked = (path for path in found if os.access(path, os.W_OK) or os.path.basename(os.path.dirname(path)) == run)
    return list(asked)[:GOVERNORS_MAX]


def ask(path: str, request: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> Answer:
    """Send one request and return the answer. Never raises; `timeout_s` bounds the whole exchange.

    Nothing is sent to a stranger at a `Found` path.
    """
    deadline_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        try:
            if (why := _stranger(sock, path, timeout_s)) is not None:
                return _not_believed(path, why)
        except (OSError, ValueError) as error:
            return _unreachable(path, error)
        is_sent = False
        try:
            sock.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
            sock.sendall(json.dumps(request).encode() + b"\n")
            is_sent = True
        except TimeoutError:
            return _silent(path, timeout_s)
        except OSError:
            # The governor hung up. Anything it sent before can still be read.
            pass
        received = bytearray()
        while not received.endswith(b"\n") and len(received) <= RESPONSE_BYTES_MAX:
            sock.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
            try:
                data = sock.recv(_CHUNK_BYTES)
            except TimeoutError:
                silent = f"did not answer within {timeout_s:g} s"
                return _unsure(path, request, silent) or _silent(path, timeout_s)
            except OSError:
                break
            if not data:
                break
            received += data
    lost = _unsure(path, request, "hung up before it answered") if is_sent and not received else None
    return lost or _read(path, request, bytes(received))


def _stranger(sock: socket.socket, path: str, timeout_s: float) -> str | None:
    """Connect. Why whoever listens there is not believed; None: ask."""
    # Before, too: a stranger's full queue holds up nobody.
    if isinstance(path, Found) and (why := doubt(path, os.stat(path).st_uid)) is not None:
        return why
    _connect(sock, path, timeout_s)
    return stranger(sock, path) if isinstance(path, Found) else None


def _connect(sock: socket.socket, path: str, timeout_s: float) -> None:
    """Connect, waiting while the backlog is full: the governor empties it at its next turn. EAGAIN after `timeout_s`.

    SO_SNDTIMEO, not settimeout(): a non-blocking socket gets EAGAIN at once (unix(7)).
    """
    micros = max(1, round(timeout_s * 1e6))  # 0 would mean for ever.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(*divmod(micros, 1_000_000)))
    sock.connect(path)


def ask_each(paths: tuple[str, ...], request: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> list[Answer]:
    """Ask every governor. Empty if there is none. A stranger is told of where nobody else answers."""
    found = [ask(path, request, timeout_s) for path in paths]
    answers = [answer for answer in found if answer.code not in ("no_governor", "stranger")]
    return answers or [answer for answer in found if answer.code == "stranger"][:1]


def ask_first(paths: tuple[str, ...], request: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> Answer:
    """Ask one governor after another until one succeeds. Otherwise return the most informative refusal.

    If there is no governor, the answer names every path tried. A governor that refuses, or may not be asked, outranks
    those that do not know the run: it may be the right one.
    """
    telling: Answer | None = None
    for path in paths:
        answer = ask(path, request, timeout_s)
        if answer.ok:
            return answer
        if answer.code != "no_governor" and (telling is None or _RANK.get(answer.code, 1) > _RANK.get(telling.code, 1)):
            telling = answer
    return telling or Answer(False, error=nobody(paths), code="no_governor")


def nobody(paths: tuple[str, ...]) -> str:
    """The message if no governor answers anywhere."""
    return f"no governor at {' or '.join(paths)}: start it with `systemctl start costgov` or `costgov run -- CMD`"


def _unreachable(path: str, error: Exception) -> Answer:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, TimeoutError) or number == errno.EAGAIN:
        return Answer(False, error=f"the governor at {path} accepts no connections; see its log", code="silent")
    if number in (errno.EACCES, errno.EPERM) and is_listened_on(path):
        text = f"you may not talk to the governor at {path}; become a member of the socket's group, or root"
        return Answer(False, error=text, code="denied")
    return Answer(False, error=nobody((path,)), code="no_governor")


def stranger(sock: socket.socket, path: str) -> str | None:
    """Why whoever listens at a path that nobody named is no governor of ours; None: it is believed."""
    uid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    return doubt(path, uid)


def _not_believed(path: str, why: str) -> Answer:
    text = (
        f"no governor of yours at {path}: {why}; if you know it, say so with --control {path}, else start one with "
        "`costgov run -- CMD`"
    )
    return Answer(False, error=text, code="stranger")


def is_listened_on(path: str, table: str = UNIX_SOCKETS) -> bool:
    """Whether somebody listens there. The kernel refuses whoever may not write a socket before it says that it is dead.

    A governor binds its socket under another name first, which stays the kernel's. True where the list cannot be read.
    """
    names = {name + end for name in (path, os.path.realpath(path)) for end in ("", ".new")}
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as lines:
            next(lines, "")
            for line in lines:
                fields = line.rstrip("\n").split(maxsplit=_PATH_FIELD)
                if (
                    len(fields) > _PATH_FIELD
                    and int(fields[_FLAGS_FIELD], 16) & _LISTENS
                    and (fields[_PATH_FIELD] in names or _may_be(fields[_PATH_FIELD], path))
                ):
                    return True
    except (OSError, ValueError):
        return True
    return False


def _may_be(bound: str, path: str) -> bool:
    """Whether a relative name, of a directory that nobody knows, ends as the path does. "@" begins an abstract one."""
    return bound[:1] not in ("/", "@") and os.path.basename(bound).removesuffix(".new") == os.path.basename(path)


def _silent(path: str, timeout_s: float) -> Answer:
    text = f"the governor at {path} did not answer within {timeout_s:g} s; see its log (journalctl -u costgov)"
    return Answer(False, error=text, code="silent")


def _unsure(path: str, request: Mapping[str, Any], why: str) -> Answer | None:
    """Where a request that acts was sent and not answered: it may be done, or still be. None: it only asked."""
    if request.get("cmd") not in _SHOWN_BY:
        return None
    shown = _SHOWN_BY[str(request["cmd"])]
    told = f"{shown} {request['run']}" if shown == "status" and str(request.get("run"))[:1] not in ("@", "") else shown
    text = f"sent to the governor at {path}, which {why}: it may have been done, or still be; look: `costgov {told}`"
    return Answer(False, error=printable(text, " "), code="unsure")


def _read(path: str, request: Mapping[str, Any], received: bytes) -> Answer:
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):
        answer = None
    is_answer = isinstance(answer, dict) and isinstance(answer.get("ok"), bool)
    cmd = str(request.get("cmd"))
    found = sifted(answer.get("data"), ANSWERS.get(cmd, {})) if is_answer and answer["ok"] else None
    if found is not None:
        return Answer(True, data=found[0], left_out=tuple(printable(line, " ") for line in found[1]))
    if not is_answer or answer["ok"]:
        text = f'{path} did not answer "{cmd}" as a governor of this version does; is it one? `costgov doctor` looks'
        return Answer(False, error=text, code="garbled")
    told = " ".join(str(answer.get("error", "refused")).split())
    return Answer(False, error=printable(told, " "), code=str(answer.get("code", "unavailable")))


def matching(found: Sequence[Snapshot], wanted: str) -> list[Snapshot]:
    """The incidents that a person may mean: "last" is the newest, an exact id only itself, else ids by prefix.

    A halt over several nodes has one id that all of them call it by, beside the one that it has here.
    """
    if wanted == "last":
        return [max(found, key=lambda snapshot: int(snapshot["opened_wall_ns"]))] if found else []
    exact = [one for one in found if wanted in (one["incident_id"], one.get("called"))]
    return exact or [snapshot for snapshot in found if str(snapshot["incident_id"]).startswith(wanted)]
