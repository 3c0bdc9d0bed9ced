"""A process that takes the place of `costgov run` where others' orphans would come to it, and has it as its child.

Pid 1 of a container gets what `docker exec` leaves behind, and who had children before it became costgov
(`server & exec costgov run`) has those. Nothing tells such an orphan from the command's: all that a process inherits
can be copied. So the process forks. Its child goes on as `costgov run`, to which its command's orphans come alone. The
process itself becomes this program: it takes the exit codes of what comes to it, passes signals on, and ends with its
child. A signal to a process group, a session or a control group is for both, so the child is told the number of each
that is passed on, through a pipe: what comes to it twice counts once (signals.Copies).
"""

# It runs by itself, without costgov's other modules or any that are installed: a container has it as long as it lives.
from __future__ import annotations

import contextlib
import os
import signal
import sys

# Those that a thread causes itself are not waited for.
_NOT_WAITED_FOR = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
    signal.SIGSYS, signal.SIGABRT,
}  # fmt: skip
# A terminal sends these to all of its foreground, the child too.
_OF_TERMINALS = {
    signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGCONT, signal.SIGWINCH, signal.SIGTTIN,
    signal.SIGTTOU,
}  # fmt: skip


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def leave_place() -> int | None:
    """Go on as the child of what this process becomes, if others' orphans would come to it. Before any thread.

    Returns the pipe in which the number of each signal that is passed on stands before the signal comes. Where nothing
    can be forked, or where no others come, it goes on as it is.
    """
    if os.getpid() != 1 and not has_children():
        return None
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # The kernel would keep no exit code.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _waited_for())
    for stream in (sys.stdout, sys.stderr):  # What is not written yet would be written twice.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    told, telling = _pipe()
    try:
        child = os.fork()
    except OSError:
        child = 0
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if telling is not None:
            os.close(telling)
        return told
    with contextlib.suppress(OSError):  # It takes less memory, and its command line is not that of a governor.
        if telling is not None:
            os.set_inheritable(telling, True)
        argv = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(child), *([str(telling)] if telling else [])]
        os.execv(sys.executable, argv)  # noqa: S606
    os._exit(until_end(child, telling))


def _pipe() -> tuple[int, int] | tuple[None, None]:
    """Neither end of it waits. None where no descriptor is free."""
    try:
        ends = os.pipe()
    except OSError:
        return None, None
    for end in ends:
        os.set_blocking(end, False)
    return ends


def until_end(child: int, telling: int | None) -> int:
    """Reap and pass on until this child has ended. Its exit code, as a shell tells it."""
    waited_for = _waited_for()
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    while True:
        code = _reaped(child)
        if code is not None:
            return code if code >= 0 else 128 - code
        told = signal.sigwaitinfo(waited_for)
        is_from_terminal = told.si_code > 0 and told.si_signo in _OF_TERMINALS
        if told.si_signo != signal.SIGCHLD and not is_from_terminal:
            if telling is not None:
                with contextlib.suppress(OSError):  # It has taken none for long, or reads no more.
                    os.write(telling, bytes([told.si_signo]))
            os.kill(child, told.si_signo)  # It is not reaped yet, so its pid is still its own.


def _reaped(child: int) -> int | None:
    """Take the exit codes of all that have ended. The child's, if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


def _waited_for() -> set[int]:
    return {int(signum) for signum in signal.valid_signals()} - _NOT_WAITED_FOR


if __name__ == "__main__":
    os._exit(until_end(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
