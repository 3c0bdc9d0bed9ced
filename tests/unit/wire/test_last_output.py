"""What the last lines of a command mean: the frameworks' own lines, and strangers' bytes."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs
from governor.core.events.ends import Failure, LastLine
from governor.wire.last_output import LINE_CHARS_MAX, LINES_MAX, failed, last_lines

OUT_OF_MEMORY = b"""\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 31, in <module>
[rank1]:     loss = model(batch)
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79 GiB
"""
# torchrun of PyTorch 2.13, when the kernel has killed a rank.
ELASTIC = b"""\
W1123 01:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 79 closing signal SIGTERM
E1123 01:00:00.2 77 torch/distributed/elastic/multiprocessing/api.py:1003] failed (exitcode: -9) local_rank: 1 (pid: 80) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""  # noqa: E501
SHM = b"""\
ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.
"""  # noqa: E501


@pytest.mark.parametrize(
    ("output", "what", "rank", "signum"),
    [
        (OUT_OF_MEMORY, "out of GPU memory", 1, None),
        (ELASTIC, None, 1, 9),
        (SHM, "too little shared memory (/dev/shm)", None, None),
        (
            b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
            "the kernel's out-of-memory killer",
            None,
            None,
        ),
        (b"train.sh: line 3:  4711 Killed                  python train.py", None, None, 9),
        (b"Killed", None, None, 9),
        (b"DataLoader worker (pid 3) is killed by signal: Killed.", None, None, 9),
        (b"[launch.py:259:sigkill_handler] ['python', 'train.py'] exits with return code = -9", None, None, 9),
        (b"OSError: [Errno 28] No space left on device: '/ckpt/x'", "a full disk", None, None),
        (b"CUDA error: uncorrectable ECC error encountered", "faulty GPU memory (uncorrectable ECC error)", None, None),
        (b"[rank3]: ncclSystemError: System call failed or device error", "an NCCL error", 3, None),
        (b"Segmentation fault (core dumped)", "a segmentation fault", None, None),
    ],
)
def test_a_known_line_has_its_meaning(output: bytes, what: str | None, rank: int | None, signum: int | None) -> None:
    first = last_lines(output)[0]
    assert (first.what, first.rank, first.signum) == (what, rank, signum)


def test_the_end_of_a_traceback_is_quoted_where_nothing_is_known() -> None:
    output = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\nValueError: 3 != 4\n'
    assert last_lines(output) == (LastLine(None, "ValueError: 3 != 4", is_raised=True),)


def test_the_source_in_a_traceback_is_not_what_was_raised() -> None:
    source = b'    raise torch.OutOfMemoryError("CUDA out of memory") if full else StopIteration\n'
    output = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n' + source + b"StopIteration\n"
    assert last_lines(output) == (LastLine(None, "StopIteration", is_raised=True),)
    assert last_lines(b"[rank1]: " + output.replace(b"\n", b"\n[rank1]: ")) == (
        LastLine(None, "[rank1]: StopIteration", rank=1, is_raised=True),
    )


TRACEBACK = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\n'
PEER = (
    b"[rank0]: " + TRACEBACK.replace(b"\n", b"\n[rank0]: ") + b"torch.distributed.DistBackendError: NCCL error in: x\n"
)


@pytest.mark.parametrize(
    ("output", "text", "what"),
    [
        (b"OSError: No space left on device\n" + TRACEBACK + b"ValueError: 3\n", "ValueError: 3", None),
        (TRACEBACK + b"OSError: [Errno 28] x\nretried\n" + TRACEBACK + b"KeyError: 1\n", "KeyError: 1", None),
        (TRACEBACK + b"OSError: [Errno 28] x\nNCCL error\n", "OSError: [Errno 28] x", "a full disk"),
        # Its peer's failure follows that of a rank, but not one that was caught.
        (OUT_OF_MEMORY + PEER, OUT_OF_MEMORY.decode().splitlines()[-1], "out of GPU memory"),
        (TRACEBACK + b"OSError: [Errno 28] x\n" + PEER, PEER.decode().splitlines()[-1], "an NCCL error"),
        # Launchers repeat what was raised.
        (TRACEBACK + b"KeyError: 1\n" + TRACEBACK + b"x.CalledProcessError: Command 'x'\n", "KeyError: 1", None),
    ],
)  # fmt: skip
def test_the_end_of_the_last_traceback_has_its_own_meaning(output: bytes, text: str, what: str | None) -> None:
    (raised,) = [line for line in last_lines(output) if line.is_raised]
    assert (raised.text, raised.what) == (text, what)


def test_ranks_that_print_at_the_same_time_have_a_traceback_each() -> None:
    ranks = zip(OUT_OF_MEMORY.splitlines(), PEER.splitlines(), strict=True)
    (raised,) = last_lines(b"\n".join(line for two in ranks for line in reversed(two)))
    assert (raised.what, raised.rank, raised.is_raised) == ("out of GPU memory", 1, True)


def test_an_out_of_memory_kill_and_an_exit_code_are_known_as_such() -> None:
    slurm = b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"
    assert [line.is_oom for line in last_lines(slurm + b"CUDA out of memory\n")] == [True, False]
    aborted = ELASTIC.replace(b"-9", b"-6")
    assert [(line.signum, line.is_exit_code) for line in last_lines(aborted)] == [(6, True)]


def test_a_traceback_that_a_kill_cut_has_no_end() -> None:
    assert not any(line.is_raised for line in last_lines(TRACEBACK + b"Killed\n"))


def test_healthy_output_means_nothing() -> None:
    lines = (
        b"Killed 3 stale workers\nKilled: x\nw.log: line 3: 47 Killed workers\nx is killed by signal: Killed\n"
        b"step 3 loss 2.5\nout of 100 files 3 were Killed Bill\nSaved. exitcode 0\ncostgov: r1: CUDA out of memory\n"
    )
    assert last_lines(lines) == ()


def test_hostile_output_is_bounded_and_printable() -> None:
    flood = b"".join(b"\x1b[2J\x07[rank%d]: CUDA out of memory \xff\x00%s\r\n" % (i, b"x" * 9_000) for i in range(300))
    found = last_lines(flood + b"Traceback (most recent call last)\n" * 3 + b"E" * 200_000)
    assert len(found) <= LINES_MAX + 1
    assert all(len(line.text) <= LINE_CHARS_MAX and line.text.isprintable() for line in found)


def test_a_failure_of_a_frame_is_whatever_a_stranger_sends() -> None:
    frame = {"rank": 3, "failure": {"name": "E\x1b[2J", "text": 7, "place": None, "thread": "t\n"}}
    event = failed(frame, ConnectionId(1), MonoNs(5), "r")
    assert event.failure == Failure("E\N{REPLACEMENT CHARACTER}[2J", "", None, "t\N{REPLACEMENT CHARACTER}")
    assert failed({"rank": 0, "failure": {}}, ConnectionId(1), MonoNs(5), "r").failure == Failure("an exception", "")
