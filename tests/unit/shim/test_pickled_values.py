"""What is read of a file that torch has saved, without running any of it."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from trainer_shim.saving.pickled_values import Budget, TooLargeError, plain_values, values_of


class Raises:
    """Whoever unpickles it runs code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('it was run')",)


def shared() -> dict[str, Any]:
    words = ["global_step", "state"]
    return {"first": words, "global_step": 30, "callbacks": {"state": {"global_step": 7, "sound": False}}}


@pytest.mark.parametrize("protocol", range(1, 6))
def test_plain_values_are_themselves_and_all_else_is_none(protocol: int) -> None:
    told = {
        "epoch": 0,
        "state_dict": OrderedDict(weight=Fraction(1, 3)),
        "hyper_parameters": {"data_dir": Path("/data"), "rate": 0.5, "names": ["a", "b"], "deep": {"on": True}},
        "harmful": Raises(),
        "none": None,
        "pair": (1, 2, 3, 4),
        "kinds": {1, 2},
        "long": 2**70,
        "global_steps": 300,
        "word": "x" * 300,
    }
    wanted: dict[str, Any] = dict.fromkeys(told) | {name: told[name] for name in ("epoch", "long", "global_steps")}
    wanted |= {"word": told["word"]}
    wanted["hyper_parameters"] = {"data_dir": None, "rate": 0.5, "names": None, "deep": {"on": True}}
    assert plain_values(pickle.dumps(told, protocol)) == wanted
    assert plain_values(pickle.dumps(shared(), protocol)) == {**shared(), "first": None}


def saved(path: Path, pickled: bytes, **how: Any) -> Path:
    with zipfile.ZipFile(path, "w", **how) as archive:
        archive.writestr("archive/data.pkl", pickled)
    return path


def test_a_file_of_torch_s_says_its_step(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.ckpt", pickle.dumps({"global_step": 30, "of_its_script": Raises()}, 2))
    assert values_of(str(path)) == {"global_step": 30, "of_its_script": None}


@pytest.mark.parametrize(
    "raw", [b"", b"\x80\x02.", b"\x80\x02}q\x00", b"\x80\x02u.", b"\x80\x02h\x07.", b"\x80\x02]q\x00.", b"PK" * 90]
)
def test_what_is_no_pickle_of_a_dict_is_a_value_error(tmp_path: Path, raw: bytes) -> None:
    for path in (saved(tmp_path / "a.ckpt", raw), saved(tmp_path / "b.ckpt", raw, compression=zipfile.ZIP_DEFLATED)):
        with pytest.raises(ValueError, match=r"\w"):
            values_of(str(path))
    (tmp_path / "c.ckpt").write_bytes(raw)
    with pytest.raises(ValueError, match=r"\w"):
        values_of(str(tmp_path / "c.ckpt"))


def test_of_many_files_the_newest_are_read_as_far_as_there_is_time(tmp_path: Path) -> None:
    pickled = pickle.dumps({"global_step": 30}, 2)
    path = saved(tmp_path / "a.ckpt", pickled)
    budget = Budget(2 * len(pickled))
    assert [budget.values_of(str(path)) for _ in range(2)] == [{"global_step": 30}] * 2
    with pytest.raises(TooLargeError, match="too large to be read here"):
        budget.values_of(str(path))
