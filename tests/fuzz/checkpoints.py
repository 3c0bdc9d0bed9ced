"""What a stranger leaves on the disk: manifests, weights, pidfiles."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

from governor.adapters.trainers.checkpoint_reader import Answer, FindAnswer, Progress, find, line_of, look
from governor.adapters.trainers.checkpoints import DiskCheckpoints
from governor.adapters.trainers.deciders import read_pidfile
from tests.fuzz import mutate
from trainer_shim.saving import checkpoint, weights_sample
from trainer_shim.saving.manifest import MANIFEST
from trainer_shim.saving.pickled_values import values_of
from trainer_shim.saving.resuming import harm_of

SAMPLE: dict[str, Any] = {
    "step": 10, "tokens_total": 4096, "kind": "good", "parameters": 2, "bytes_min": 8,
    "files": [{"path": "model.safetensors", "bytes": 10, "sha256": None, "node": None},
              {"path": "deep/er/optim.pt", "bytes": 3, "sha256": "0" * 64, "node": "other"},
              {"path": "costgov_rng.json", "bytes": 2, "sha256": None, "node": None}],
}  # fmt: skip
SAID_MAX = 600


class Manifests:
    """The reader's own function, in this process. resume() finds the same."""

    name = "manifests"
    share = 0.08
    block = 500

    def begin(self, work: Path) -> None:
        self._work = work
        (work / "deep" / "er").mkdir(parents=True)
        (work / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        (work / "deep" / "er" / "optim.pt").write_bytes(b"abc")
        (work / "costgov_rng.json").write_bytes(b"{}")
        os.mkfifo(work / "pipe.pt")
        (work / "link.bin").symlink_to("/dev/zero")
        self._null = os.open("/dev/null", os.O_WRONLY)

    def draw(self, random: Random) -> bytes:
        sample: Any = {**SAMPLE, "files": [*SAMPLE["files"]]}
        if random.random() < 0.3:
            path = random.choice(("pipe.pt", "link.bin", "deep", "/dev/zero", "a/" * 40, "../x", *mutate.TEXTS))
            sample["files"].append({"path": path, "bytes": 8, "sha256": random.choice((None, "0" * 64))})
        sample = mutate.broken(random, sample, random.choice((0, 1, 1, 2, 4)))
        return mutate.damaged(random, mutate.encoded(random, sample), 0.2)

    def play(self, one: bytes) -> None:
        (self._work / MANIFEST).write_bytes(one)
        answer = look(str(self._work), Progress(self._null), hash_s=0.5)
        checked(answer)
        faults = self._faults()
        assert answer.whole in (None, not faults), f"resume() says {faults}, the governor's reader {answer.reason}"
        checked(find(str(self._work), Progress(self._null)))

    def _faults(self) -> list[str]:
        """As resume() judges it."""
        faults = checkpoint.verify_manifest(str(self._work), hashes=True)
        manifest = checkpoint.read_manifest(str(self._work))
        if faults or manifest is None:
            return faults
        harm = harm_of({**manifest, "path": str(self._work)}, 0, 1)
        return [harm] if harm is not None else []

    def end(self) -> None:
        os.close(self._null)


def checked(answer: Answer | FindAnswer) -> None:
    json.loads(line_of(answer))
    assert len(answer.reason) <= SAID_MAX, "a reason without end"


class Readers(Manifests):
    """The same by the real reader, a process of its own with its limits and the rights of nobody."""

    name = "readers"
    share = 0.0005
    _disk: DiskCheckpoints | None = None

    def begin(self, work: Path) -> None:
        super().begin(work)
        work.chmod(0o755)
        self._disk = DiskCheckpoints()

    def play(self, one: bytes) -> None:
        assert self._disk is not None
        (self._work / MANIFEST).write_bytes(one)
        found = self._disk.read(str(self._work), MANIFEST, uid=65534, gid=65534)
        assert "ended without an answer" not in found.reason, "the reader crashed"
        found.reason.encode()

    def end(self) -> None:
        if self._disk is not None:
            self._disk.close()
        super().end()


class Weights:
    """Samples of safetensors files and of torch's zips. Nothing is unpickled, and nothing raises."""

    name = "weights"
    share = 0.08
    block = 500

    def begin(self, work: Path) -> None:
        self._work = work

    def draw(self, random: Random) -> Any:
        if random.random() < 0.5:
            return "model.safetensors", mutate.damaged(random, _safetensors(random), 0.4)
        return random.choice(("a.pt", "a.bin")), mutate.damaged(random, _torch_zip(random), 0.4)

    def play(self, one: Any) -> None:
        name, data = one
        (self._work / name).write_bytes(data)
        found = weights_sample.nonfinite(str(self._work), [name], lambda: None, time_s=0.5)
        assert found is None or isinstance(found, str)
        if found is not None:
            json.dumps(found).encode()
        seen = weights_sample.sample(str(self._work), [(name, len(data))], lambda: None, time_s=0.5)
        assert seen.harm == found
        assert seen.unsampled is None or len(seen.unsampled) <= SAID_MAX
        with contextlib.suppress(OSError, ValueError):  # What resume() asks of a file that its framework wrote.
            assert all(isinstance(key, str) for key in values_of(str(self._work / name)))

    def end(self) -> None: ...


def _safetensors(random: Random) -> bytes:
    header: Any = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": random.choice(("F32", "BF16", "F64", "I8")), "shape": [8, 16], "data_offsets": [0, 512]},
        "b": {"dtype": "F16", "shape": [256], "data_offsets": [512, 1024]},
    }
    header = mutate.broken(random, header, random.choice((0, 1, 2)))
    text = mutate.encoded(random, header)
    length = random.choice((len(text),) * 6 + (0, 2**63, 2**64 - 1, len(text) + 9, 8 << 20))
    body = bytes(1024) if random.random() < 0.5 else b"\xff" * 1024
    return struct.pack("<Q", length) + text + body


def _torch_zip(random: Random) -> bytes:
    kind = random.choice(("torch FloatStorage", "torch HalfStorage", "torch FloatStorage", "os system"))
    module, name = kind.split()
    key = random.choice(("0", "0", "1", "\0"))
    opcodes = (
        b"\x80\x02}q\x00(X\x01\x00\x00\x00wq\x01((X\x07\x00\x00\x00storageq\x02c" + f"{module}\n{name}\n".encode()
        + b"q\x03X" + struct.pack("<I", len(key)) + key.encode() + b"q\x04X\x03\x00\x00\x00cpuq\x05K\x80tq\x06Qu."
    )  # fmt: skip
    if random.random() < 0.2:
        opcodes = pickle.dumps(random.choice(mutate.OTHERS), random.randrange(5))
    packed = io.BytesIO()
    method = zipfile.ZIP_STORED if random.random() < 0.9 else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("archive/data.pkl", mutate.damaged(random, opcodes, 0.4))
        archive.writestr(
            f"archive/data/{random.choice(('0', '0', '../0'))}", random.choice((bytes(512), b"\xff" * 512, b""))
        )
    return packed.getvalue()


class Indexes:
    """The .metadata of torch.distributed.checkpoint: a pickle of which nothing is run."""

    name = "indexes"
    share = 0.02
    block = 500

    def begin(self, work: Path) -> None:
        self._work = work
        (work / "__0_0.distcp").write_bytes(bytes(9))
        self._null = os.open("/dev/null", os.O_WRONLY)

    def draw(self, random: Random) -> bytes:
        paths = ("__0_0.distcp", "__0_0.distcp", "../x", "/dev/zero", "a/" * 40, *mutate.TEXTS)
        places = [
            {"relative_path": random.choice(paths), "offset": random.choice((0, 4, *mutate.NUMBERS)), "length": 5}
            for _ in range(random.randrange(4))
        ]
        return mutate.damaged(random, pickle.dumps({"storage_data": places}, random.randrange(6)), 0.4)

    def play(self, one: bytes) -> None:
        (self._work / ".metadata").write_bytes(one)
        sizes = [(".metadata", len(one)), ("__0_0.distcp", 9)]
        seen = weights_sample.sample(str(self._work), sizes, lambda: None, time_s=0.5)
        assert seen.harm is None
        assert seen.torn is None or " names" in seen.torn
        checked(find(str(self._work), Progress(self._null)))

    def end(self) -> None:
        os.close(self._null)


class Pidfiles:
    """A pidfile with anything in it, or anything in its place."""

    name = "pidfiles"
    share = 0.08
    block = 1_000

    def begin(self, work: Path) -> None:
        self._path = work / "train.pid"

    def draw(self, random: Random) -> Any:
        kind = random.choice(("file",) * 8 + ("fifo", "link", "directory", "nothing", "loop", "device"))
        texts = (
            str(random.choice(mutate.NUMBERS[:15])),
            random.choice(mutate.TEXTS),
            "1234\n",
            " 77 x",
            "-5",
            "0x10",
            "1e3",
            "٣",
        )
        data = random.choice(texts).encode("utf-8", "surrogatepass")
        return kind, mutate.damaged(random, data, 0.4), random.choice((0o644, 0o600, 0o666, 0o000))

    def play(self, one: Any) -> None:
        kind, data, mode = one
        path = self._path
        if kind == "file":
            path.write_bytes(data)
            path.chmod(mode)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        elif kind != "nothing":
            path.symlink_to({"link": "/proc/self/stat", "loop": str(path), "device": "/dev/zero"}[kind])
        try:
            found = read_pidfile(str(path))
        finally:
            if kind == "directory":
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        assert found is None or found.pid > 1

    def end(self) -> None: ...
