"""One manifest, two who read it: the governor's reader after a halt, and resume() before training. They agree."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.trainers import checkpoint_reader
from governor.adapters.trainers.checkpoint_reader import Progress
from tests.unit.shim.test_checkpoint import written
from tests.unit.shim.test_resuming import Loader
from trainer_shim.saving import checkpoint
from trainer_shim.saving.resuming import resume_from
from trainer_shim.saving.store import MemoryStore

SHARD = {"path": "shard_0.pt", "bytes": 1000, "sha256": None}
OWN = {"path": "costgov_own.json", "bytes": 2, "sha256": None}
PLAIN = {"v": 1, "kind": "good", "step": 7, "files": [SHARD]}


def entry(**more: Any) -> dict[str, Any]:
    return {**PLAIN, "files": [SHARD, {**SHARD, **more}]}


# What is written in place of the manifest, and whether the checkpoint is whole. None: its manifest is a pipe.
TABLE: dict[str, tuple[Any, bool]] = {
    "plain": (PLAIN, True),
    "of a later version, with more to say": ({**PLAIN, "v": 2, "new": {"path": "x", "bytes": 1}}, True),
    "an entry with more to say": (entry(step=7, mode=[1]), True),
    "the same file twice": (entry(), True),
    "another node's file": (entry(path="not here", node="another"), True),
    "enough bytes": ({**PLAIN, "parameters": 500, "bytes_min": 1000}, True),
    "bytes that nobody can need": ({**PLAIN, "parameters": 500, "bytes_min": "1000"}, True),
    "no times": ({**PLAIN, "created_unix_s": "yesterday", "tokens_total": "many"}, True),
    "times that are no numbers": ({**PLAIN, "created_unix_s": math.nan, "tokens_total": math.inf}, True),
    "times beyond all clocks": ({**PLAIN, "created_unix_s": -1e308, "tokens_total": -5}, True),
    "a pipe": (None, False),
    "nothing": (b"", False),
    "torn": (json.dumps(PLAIN).encode()[:-9], False),
    "a list": ([PLAIN], False),
    "nesting without end": (b"[" * 1_000_000, False),
    "with a byte order mark": (b"\xef\xbb\xbf" + json.dumps(PLAIN).encode(), False),
    "in UTF-16": (json.dumps(PLAIN).encode("utf-16"), False),
    "half of a surrogate pair as bytes": (json.dumps(PLAIN).encode().replace(b"shard", b"\xed\xa0\x80"), False),
    "no step": ({**PLAIN, "step": None}, False),
    "a true step": ({**PLAIN, "step": True}, False),
    "a step before the first": ({**PLAIN, "step": -1}, False),
    "a step of a hundred digits": ({**PLAIN, "step": 10**100}, False),
    "no files": ({**PLAIN, "files": []}, False),
    "our own files alone": ({**PLAIN, "files": [OWN]}, False),
    "too few bytes": ({**PLAIN, "parameters": 500, "bytes_min": 1001}, False),
    "too few bytes beside our own": ({**PLAIN, "files": [SHARD, OWN], "parameters": 500, "bytes_min": 1002}, False),
    "an entry that is a list": ({**PLAIN, "files": [SHARD, []]}, False),
    "an entry that lists files": (entry(files=[]), True),
    "a negative size": (entry(bytes=-1), False),
    "a size of a hundred digits": (entry(bytes=10**100, node="another"), False),
    "a true size": (entry(bytes=True, node="another"), False),
    "a size in words": (entry(bytes="1000"), False),
    "a hash that is a number": (entry(sha256=5), False),
    "a node that is a number": (entry(node=5), False),
    "a node that is a list": (entry(node=[]), False),
    "no name": (entry(path=""), False),
    "an absolute name": (entry(path="/etc/passwd", node="another"), False),
    "a name above": (entry(path="a/../../b", node="another"), False),
    "a name with a zero": (entry(path="a\0b"), False),
    "half of a surrogate pair": (entry(path="\ud800"), False),
    "a name longer than any": (entry(path="n" * 4097, node="another"), False),
    "a name deeper than any": (entry(path="d/" * 32 + "f", node="another"), False),
    "a name that is the directory": (entry(path="."), False),
    "a name below a file": (entry(path="shard_0.pt/a"), False),
}  # fmt: skip


def with_manifest(directory: Path, content: Any) -> Path:
    path = written(directory, 7)
    for rank in range(2):
        (path / checkpoint.rank_file(rank)).unlink()  # Generators and positions are not the subject.
    (path / "costgov_own.json").write_text("{}")
    place = path / checkpoint.MANIFEST
    place.unlink()
    if content is None:
        os.mkfifo(place)
    else:
        place.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("case", TABLE)
def test_who_reads_for_the_governor_and_who_resumes_agree(tmp_path: Path, case: str) -> None:
    content, is_whole = TABLE[case]
    path = with_manifest(tmp_path, content)
    with open(os.devnull, "wb") as nowhere:
        found = checkpoint_reader.look(str(path), Progress(nowhere.fileno()))
    loader = Loader()
    resumed = resume_from(loader, str(tmp_path), 0, MemoryStore(), 1)
    assert (found.whole, resumed is not None) == (is_whole, is_whole), found.reason
    assert loader.loaded == (["cg_7"] if is_whole else [])
    if resumed is not None:
        assert resumed.tokens_total is None
        assert math.isfinite(resumed.age_s)
        assert resumed.age_s >= 0
