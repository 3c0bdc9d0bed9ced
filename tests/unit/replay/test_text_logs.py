"""Console logs of trainers, replayed: which of them the shipped policy halts, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import pytest

from governor.replay.logs import logs, records
from governor.replay.readers import lines as lines_module
from governor.replay.readers.lines import LINE_BYTES_MAX, LogUnreadable, console_lines
from governor.replay.readers.text import TextOptions
from governor.wire import formats
from tests.unit import replayed
from tests.unit.wire.formats.written import GPUS, LENGTH, WRITERS, run

CASES: dict[str, dict[str, Any]] = {
    "healthy": {},
    "nan": {"broken_from": 150},
    "slow": {"slow_from": 150},
    "hang": {},
}
RUN_ON = ("--run-on", "3h")
POLICY = Path(__file__).parents[2] / "golden" / "replay" / "policy.toml"
# The first rule that halts, in either mode, by case. torchtune's file has no time, so nothing in it is late.
WANTED = {name: {"healthy": None, "nan": "nonfinite", "slow": "slow", "hang": "hang"} for name in formats.NAMES}
WANTED["torchtune"] = {"healthy": None, "nan": "nonfinite", "slow": None, "hang": None}


def written(path: Path, name: str, **case: Any) -> Path:
    text = "\n".join(WRITERS[name](run(200, **case))) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", formats.NAMES)
def test_what_is_halted(tmp_path: Path, name: str, case: str) -> None:
    log = written(tmp_path / "train.log", name, **CASES[case])
    passed = ("--sequence-length", LENGTH, "--gpus", GPUS, *(RUN_ON if case == "hang" else ()))
    result = replayed.run("--json", "--policy", POLICY, *passed, log)
    assert result.exit_code == 0, result.output
    *verdicts, last = replayed.rows(result)
    halts = [verdict for verdict in verdicts if verdict["response"] == "halt"]
    assert (halts[0]["rule"] if halts else None) == WANTED[name][case]
    assert last["records"] >= 200
    if case == "nan":
        assert halts[0]["step"] == (149 if name == "nemo" else 150)


def test_a_format_that_is_named_is_not_asked_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("hello\niter 1: loss 3.1, time 10ms\n")
    assert replayed.rows(replayed.run("--json", "--format", "nanogpt", log))[-1]["records"] == 1
    result = replayed.run("--json", "--format", "megatron", log)
    assert result.exit_code == 1
    assert "megatron" in result.stderr


def test_standard_input(tmp_path: Path) -> None:
    text = "\n".join(WRITERS["megatron"](run(200, broken_from=150))).encode()
    result = replayed.run("--json", "-", stdin=text)
    assert replayed.rows(result)[0]["rule"] == "nonfinite"


def test_jsonl_on_standard_input_and_in_a_log_stays_jsonl(tmp_path: Path) -> None:
    text = "".join(json.dumps({"step": step, "loss": 2.0}) + "\n" for step in range(5))
    assert replayed.rows(replayed.run("--json", "-", stdin=text.encode()))[-1]["records"] == 5
    log = tmp_path / "metrics.log"
    log.write_text("a header that is no JSON\n" + text)
    result = replayed.run("--json", log)
    assert result.exit_code == 1
    assert replayed.rows(result)[-1]["records"] == 5


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed(tmp_path: Path, pack: Any) -> None:
    plain = "\n".join(WRITERS["nanogpt"](run(20))).encode()
    log = tmp_path / ("train.log.gz" if pack is gzip.compress else "train.log.xz")
    log.write_bytes(pack(plain))
    assert len(list(records(log))) == 21


def test_a_packed_log_that_is_torn_tells_what_it_has(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(WRITERS["nanogpt"](run(2000))).encode())
    log = tmp_path / "train.log.gz"
    log.write_bytes(packed[: len(packed) // 2])
    result = replayed.run("--json", log)
    assert result.exit_code == 1
    assert 100 < replayed.rows(result)[-1]["records"] < 2000


@pytest.mark.parametrize("name", ["train.log", "train.jsonl", "console"])
def test_text_of_nobody_is_refused_by_name(tmp_path: Path, name: str) -> None:
    log = tmp_path / name
    log.write_text("Epoch 1/10\nloss went down\n")
    result = replayed.run(log)
    assert result.exit_code == 1
    assert f"{log}: no known format" in result.stderr
    assert "Epoch 1/10" in result.stderr
    assert all(known in result.stderr for known in formats.NAMES)


def test_in_a_directory_text_counts_where_it_is_known(tmp_path: Path) -> None:
    wanted = written(tmp_path / "slurm-123.out", "megatron")
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "install.log").write_text("Collecting torch\n" * 100)
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "metrics.log").write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "broken.txt.gz").write_bytes(b"no gzip")
    assert logs([tmp_path]) == ([wanted], [])


def test_what_a_log_lacks_is_said_once(tmp_path: Path) -> None:
    log = written(tmp_path / "train.log", "nemo")
    said = replayed.run("--json", log).stderr
    assert said.count("sequence_length") == 1
    assert replayed.run("--json", "--sequence-length", 2048, log).stderr == ""


def test_utf_16(tmp_path: Path) -> None:
    """As PowerShell's Tee-Object writes."""
    log = tmp_path / "train.log"
    log.write_bytes("\r\n".join(WRITERS["nanogpt"](run(20))).encode("utf-16"))
    assert len(list(records(log))) == 21


def test_lines_of_several_encodings(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    said = [line.encode() for line in WRITERS["llm.c"](run(20))]
    log.write_bytes(b"\n".join([b"caf\xe9 \xff\xfe", *said[:10], b"\x80\x81", *said[10:]]))
    assert len(list(records(log))) == 21


def test_steps_behind_a_megabyte_of_configuration(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    head = f"node-1:123:456 [0] NCCL INFO Channel 00/32 : {'0 1 2 3 ' * 40}\n" * 4_000
    log.write_text(head + "\n".join(WRITERS["megatron"](run(5))))
    assert len(list(records(log))) == 5


def test_one_bar_of_many_megabytes(tmp_path: Path) -> None:
    """A bar on one line, as a file without a terminal has it."""
    log = tmp_path / "train.log"
    bar = "".join(WRITERS["lightning"](run(1000)))
    log.write_bytes((bar * 20).encode())
    assert log.stat().st_size > LINE_BYTES_MAX
    assert len(list(records(log))) > 1000


def test_the_places_of_faults_are_lines(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    said = list(WRITERS["mllog"](run(3)))
    log.write_text("\n".join([*said, ':::MLLOG {"time_ms": 5, "ke']))
    assert [place for place, record in records(log) if isinstance(record, list)] == [len(said) + 1]


def test_options_of_the_reader(tmp_path: Path) -> None:
    log = written(tmp_path / "train.log", "mllog")
    told: list[str] = []
    found = [record for _, record in records(log, options=TextOptions(sequence_length=7, tell=told.append))]
    assert isinstance(found[-1], dict)
    assert found[-1]["tokens_total"] == 200 * 64 * 7
    assert told == []


@pytest.mark.parametrize("read_bytes", [1, 3, 64 * 1024])
def test_console_lines(read_bytes: int) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(read_bytes)

    text = b"one\rtwo\r\nthree\n\n\rfour"
    assert list(console_lines(Slow(text))) == [(1, b"one"), (1, b"two"), (2, b"three"), (4, b"four")]


def test_console_lines_that_are_too_long() -> None:
    long = b"x" * (3 * lines_module.LINE_BYTES_MAX)
    text = io.BytesIO(b"a\n" + long + b"\nb\r" + long)
    assert list(console_lines(text)) == [(1, b"a"), (2, None), (3, b"b"), (3, None)]


def test_a_packed_log_does_not_choose_how_much_memory_it_takes(tmp_path: Path) -> None:
    """Its header says 4 GiB, which an unpacker takes at once."""
    packed = bytearray(lzma.compress(b'{"t": 1, "step": 1, "loss": 2.0}\n' * 10, preset=0))
    length = (packed[12] + 1) * 4
    assert packed[14:16] == b"\x21\x01", "the filter LZMA2, with one byte for its dictionary"
    packed[16] = 40
    packed[12 + length - 4 : 12 + length] = zlib.crc32(packed[12 : 12 + length - 4]).to_bytes(4, "little")
    path = tmp_path / "large.jsonl.xz"
    path.write_bytes(packed)
    with pytest.raises(LogUnreadable, match="Memory usage limit"):
        [*records(path)]


def test_packed_streams_one_behind_the_other_are_one_log(tmp_path: Path) -> None:
    path = tmp_path / "appended.jsonl.xz"
    parts = [lzma.compress(f'{{"t": {n}, "step": {n}, "loss": 2.0}}\n'.encode()) for n in range(3)]
    path.write_bytes(b"".join(parts) + bytes(8))
    assert [number for number, _ in records(path)] == [1, 2, 3]
