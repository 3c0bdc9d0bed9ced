"""Samples of weights: a NaN is found in each format and width, and what is made up costs nothing and says nothing."""

from __future__ import annotations

import struct
import time
import zipfile
from pathlib import Path

import pytest

from tests.unit.shim.weights_files import (
    COUNT,
    INF,
    MINUS_INF,
    NAN,
    ONE,
    dcp,
    distcp,
    hesitate,
    safetensors,
    text,
    torch_zip,
)
from trainer_shim.saving.weights_formats import NUMBER_BYTES_MAX, PICKLE_BYTES_MAX, Budget, of_distcp, storages
from trainer_shim.saving.weights_sample import (
    FILES_FIRST,
    FILES_MAX,
    SAMPLE_BYTES,
    Sampled,
    look_into,
    nonfinite,
    sample,
)


def sampled(path: Path) -> str | None:
    return nonfinite(str(path.parent), [path.name], lambda: None)


@pytest.mark.parametrize("dtype", ONE)
def test_a_nan_or_an_infinity_is_found_and_named(tmp_path: Path, dtype: str) -> None:
    healthy = ONE[dtype] * COUNT
    for harm in (NAN, INF):
        harmed = ONE[dtype] * (COUNT - 1) + harm[dtype]
        safetensors(tmp_path / "model.safetensors", {"wte": (dtype, healthy), "lm_head": (dtype, harmed)})
        assert sampled(tmp_path / "model.safetensors") == "model.safetensors: lm_head"
        torch_zip(tmp_path / "state.pt", dtype, healthy, harmed)
        assert sampled(tmp_path / "state.pt") == "state.pt: the tensor that is data/1 in it"
        begins = distcp(tmp_path / "__0_0.distcp", dtype, healthy, healthy, harmed, healthy)
        assert sampled(tmp_path / "__0_0.distcp") == f"__0_0.distcp: archive at byte {begins[2]}"


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_tensor_of_a_few_samples_is_read_whole_and_once(tmp_path: Path, dtype: str) -> None:
    width = len(ONE[dtype])
    each = SAMPLE_BYTES // width
    count = 3 * each + each // 2
    for place in (0, each - 1, each, 2 * each, 3 * each - 1, 3 * each, count - 1):
        raw = ONE[dtype] * place + NAN[dtype] + ONE[dtype] * (count - place - 1)
        safetensors(tmp_path / "model.safetensors", {"w": (dtype, raw)})
        assert sampled(tmp_path / "model.safetensors") == "model.safetensors: w", place
    safetensors(tmp_path / "model.safetensors", {"w": (dtype, ONE[dtype] * count)})
    reads: list[None] = []
    assert nonfinite(str(tmp_path), ["model.safetensors"], lambda: reads.append(None)) is None
    assert len(reads) == 2 + 4, "the header's length, the header and the samples"


@pytest.mark.parametrize("dtype", ONE)
def test_healthy_weights_masks_and_a_few_numbers_are_not_suspected(tmp_path: Path, dtype: str) -> None:
    tensors = (ONE[dtype] * COUNT, MINUS_INF[dtype] * COUNT, NAN[dtype] * 8)
    safetensors(tmp_path / "model.safetensors", {str(key): (dtype, raw) for key, raw in enumerate(tensors)})
    torch_zip(tmp_path / "state.pt", dtype, *tensors)
    assert sampled(tmp_path / "model.safetensors") is None
    assert sampled(tmp_path / "state.pt") is None
    distcp(tmp_path / "__0_0.distcp", dtype, *tensors)
    assert sampled(tmp_path / "__0_0.distcp") is None


NAME, FLOAT = text(b"layers.7.experts.31.w") + b"0", b"G?" + bytes(7) + b"0"


@pytest.mark.parametrize("size", [9 << 20, PICKLE_BYTES_MAX])
@pytest.mark.parametrize("value", [NAME, FLOAT], ids=["names", "floats"])
def test_weights_beside_many_values_are_looked_into(tmp_path: Path, size: int, value: bytes) -> None:
    """Names of 18,700 tensors, a callback's list of floats. What nobody reads is not called looked into."""
    path, many = tmp_path / "last.ckpt", value * (size // len(value))
    torch_zip(path, "F32", ONE["F32"] * COUNT, NAN["F32"] * COUNT, values=many)
    found = sample(str(tmp_path), [(path.name, path.stat().st_size)], lambda: None, time_s=60)
    if size < PICKLE_BYTES_MAX:
        assert found.harm == "last.ckpt: the tensor that is data/1 in it"
    else:
        assert found == Sampled(None, "most of its bytes: last.ckpt")


NUMBERS = 200


@pytest.mark.parametrize("place", [0, 1, 2, 100, NUMBERS])
def test_numbers_of_an_optimizer_hide_no_weight_and_what_is_no_zip_ends_nothing(tmp_path: Path, place: int) -> None:
    """A step count stands beside each moment: most zips of a .distcp file hold one number."""
    path = tmp_path / "__3_0.distcp"
    numbers = [ONE["F32"]] * NUMBERS
    begins = distcp(path, "F32", *numbers[:place], NAN["F32"] * COUNT, *numbers[place:], between=bytes(700))
    assert sampled(path) == f"__3_0.distcp: archive at byte {begins[place]}"
    distcp(path, "F32", *numbers[:place], ONE["F32"] * COUNT, *numbers[place:], NAN["F32"], between=bytes(700))
    assert sampled(path) is None


@pytest.mark.parametrize("last", ["number", "weight"])
def test_a_whole_file_of_many_zips_is_whole_whatever_its_last_one_holds(tmp_path: Path, last: str) -> None:
    """As torch writes it: one zip after another, and nothing between. Numbers are not looked into."""
    path = tmp_path / "__1_0.distcp"
    rest = [ONE["F32"] * COUNT, ONE["F32"]] * NUMBERS
    distcp(path, "F32", *(rest if last == "number" else rest[::-1]))
    looked = look_into(str(tmp_path), [path.name], lambda: None)
    assert (looked.torn, looked.into) == ([], [path.name])


def test_a_whole_file_for_which_no_time_is_left_is_not_called_torn(tmp_path: Path) -> None:
    """Of a busy machine's two seconds all may be gone between two lines."""
    path = tmp_path / "__0_0.distcp"
    distcp(path, "F32", *[ONE["F32"] * COUNT] * 3)

    class Late(Budget):
        """Begins with half of its time behind it, and ends never."""

        is_spent = False

    with path.open("rb") as file:
        assert list(of_distcp(file, Late(lambda: None, until=time.monotonic() - 1)))


def test_many_small_weights_alone_are_looked_into(tmp_path: Path) -> None:
    path = tmp_path / "__0_0.distcp"
    small = ONE["F16"] * 100
    begins = distcp(path, "F16", *[small] * NUMBERS, NAN["F16"] * 100)
    assert begins[1] < NUMBER_BYTES_MAX
    assert sampled(path) == f"__0_0.distcp: archive at byte {begins[NUMBERS]}"


def test_one_piece_with_the_whole_model_in_it_is_looked_at_in_many_places(tmp_path: Path) -> None:
    """As ZeRO's flat partitions are. Its end is padding."""
    healthy = ONE["F32"] * 100_000
    harm = NAN["F32"] * (SAMPLE_BYTES // 2)
    torch_zip(tmp_path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "F32", healthy + harm + healthy + bytes(99))
    assert sampled(tmp_path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt") is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xff" * 8, struct.pack("<Q", 40) + b"{", struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 53) + b'{"a": {"dtype": "F32", "data_offsets": [9, -9223372]}}',
        struct.pack("<Q", 2_000_000) + b"[" * 2_000_000, b"PK\x03\x04", b"PK\x05\x06" + bytes(18),
        b"PK\x05\x06" * 5_000, bytes(70_000) + b"PK\x05\x06" + b"\xff" * 18,
        b"PK\x06\x06" + b"\xff" * 52 + b"PK\x06\x07" + bytes(16) + b"PK\x05\x06" + bytes(18),
    ],
    ids=[
        "empty", "endless", "torn", "list", "number", "backwards", "nested", "half a zip", "empty zip",
        "ends alone", "a directory beyond", "a long end beyond",
    ],
)  # fmt: skip
def test_what_is_made_up_says_nothing(tmp_path: Path, raw: bytes) -> None:
    for name in ("a.safetensors", "a.pt", "a.bin", "a.distcp"):
        (tmp_path / name).write_bytes(raw)
        assert sampled(tmp_path / name) is None


@pytest.mark.parametrize(("raw", "harm"), [(ONE, None), (NAN, "state.pt: the tensor that is data/0 in it")])
def test_torch_may_have_been_told_to_compute_no_checksums(
    raw: dict[str, bytes], harm: str | None, tmp_path: Path
) -> None:
    """torch.serialization.set_crc32_options(False) leaves zeros in their places."""
    torch_zip(tmp_path / "state.pt", "F32", raw["F32"] * COUNT)
    written = bytearray((tmp_path / "state.pt").read_bytes())
    for signature, place in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        at = written.find(signature)
        while at >= 0:
            written[at + place : at + place + 4] = bytes(4)
            at = written.find(signature, at + 4)
    (tmp_path / "state.pt").write_bytes(written)
    looked = look_into(str(tmp_path), ["state.pt"], lambda: None)
    assert (looked.torn, looked.harm) == ([], harm)


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "was_run"
    code = b"cos\nsystem\n(" + text(b"touch " + str(mark).encode()) + b"tR."
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + code)
    assert sampled(tmp_path / "evil.pt") is None
    (tmp_path / "evil.pt").rename(tmp_path / "evil.distcp")
    assert sampled(tmp_path / "evil.distcp") is None
    assert not mark.exists()


def test_its_time_is_bounded(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"bad": ("F32", NAN["F32"] * COUNT)})
    assert sampled(tmp_path / "model.safetensors") is not None
    assert nonfinite(str(tmp_path), ["model.safetensors"], lambda: None, time_s=-1.0) is None
    size = (tmp_path / "model.safetensors").stat().st_size
    cut = sample(str(tmp_path), [("model.safetensors", size)], lambda: None, time_s=-1.0)
    assert cut == Sampled(None, "0 of 1 files in the time and the bytes of a look")
    torch_zip(tmp_path / "state.pt", "F32", NAN["F32"] * COUNT)
    with zipfile.ZipFile(tmp_path / "state.pt") as archive:
        opcodes = archive.read("archive/data.pkl")
    assert list(storages(opcodes, Budget(lambda: None, until=time.monotonic() + 3_600))) == [("0", "F32")]
    assert list(storages(opcodes, Budget(lambda: None, until=time.monotonic() - 1))) == []


@pytest.mark.parametrize("name", ["optimizer.pt", "optimizer_1.bin", "scheduler.pt", "rng_state_0.pth"])
def test_an_empty_state_that_is_loaded_with_the_weights_is_torn(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    (tmp_path / name).touch()
    sizes = [(one.name, one.stat().st_size) for one in sorted(tmp_path.iterdir())]
    assert sample(str(tmp_path), sizes, lambda: None).torn == f"{name} is empty"


def test_what_was_looked_into_speaks_for_as_many_bytes_again_and_an_optimizer_for_none(tmp_path: Path) -> None:
    saved(tmp_path)
    torch_zip(tmp_path / "optimizer.pt", "F32", ONE["F32"] * COUNT)
    sizes = {one.name: one.stat().st_size for one in tmp_path.iterdir()}
    for more, unsampled in ((0, None), (1, "most of its bytes: embeddings.dat")):
        others = {"embeddings.dat": sizes["model.safetensors"] + more}
        seen = sample(str(tmp_path), list({**sizes, **others}.items()), lambda: None, time_s=60.0)
        assert seen == Sampled(None, unsampled)


# --- which tensors are harmed, where they are few ---------------------------------------------------------------------


def few_harmed(folder: Path) -> str | None:
    sizes = [(one.name, one.stat().st_size) for one in sorted(folder.iterdir())]
    return sample(str(folder), sizes, lambda: None).few_harmed


def saved(folder: Path, *harmed: str, of: int = 8, name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    tensors = {f"w{number}": ("F32", (NAN if f"w{number}" in harmed else ONE)["F32"] * COUNT) for number in range(of)}
    if name.endswith(".safetensors"):
        safetensors(folder / name, tensors)
    else:
        torch_zip(folder / name, "F32", *(raw for _, raw in tensors.values()))
    return folder


def test_the_same_few_have_one_digest_and_others_another(tmp_path: Path) -> None:
    found = few_harmed(saved(tmp_path / "1", "w1"))
    assert found is not None
    assert few_harmed(saved(tmp_path / "2", "w1")) == found
    assert few_harmed(saved(tmp_path / "3", "w1", "w2")) not in (None, found), "the first is the same"
    assert few_harmed(saved(tmp_path / "4", "w2")) not in (None, found)
    assert few_harmed(saved(tmp_path / "5")) is None, "nothing is harmed"


def test_most_have_none(tmp_path: Path) -> None:
    half = [f"w{number}" for number in range(4)]
    assert few_harmed(saved(tmp_path / "half", *half)) is not None
    assert few_harmed(saved(tmp_path / "more", *half, "w4")) is None
    assert few_harmed(saved(tmp_path / "all", "w0", of=1)) is None
    shards = tmp_path / "shards"
    for number in range(9):
        saved(shards, *(f"w{harmed}" for harmed in range(8)), name=f"model-{number}.safetensors")
    for number in range(9, 39):
        saved(shards, name=f"model-{number}.safetensors")
    assert few_harmed(shards) is None, "64 are harmed: no more are counted"


def test_a_single_file_may_be_called_by_its_step(tmp_path: Path) -> None:
    found = few_harmed(saved(tmp_path / "1", "w1", name="epoch=0-step=10.ckpt"))
    assert found is not None
    assert few_harmed(saved(tmp_path / "2", "w1", name="epoch=0-step=20.ckpt")) == found
    saved(tmp_path / "2", name="other.ckpt")
    assert few_harmed(tmp_path / "2") not in (None, found)


def test_so_may_one_of_several(tmp_path: Path) -> None:
    found = set()
    for step in (9, 10):
        saved(tmp_path / str(step), "w1", name=f"weights_{step}.safetensors")
        (tmp_path / str(step) / f"notes_{step}.txt").touch()
        found.add(few_harmed(tmp_path / str(step)))
    assert len(found) == 1
    assert None not in found
    saved(tmp_path / "9", "w2", name="weights_9.safetensors")
    assert few_harmed(tmp_path / "9") not in found


def test_an_archive_of_dcp_may_begin_elsewhere_in_a_later_save(tmp_path: Path) -> None:
    """A step count before it has grown by a byte."""
    healthy, harmed = ONE["F32"] * COUNT, NAN["F32"] * COUNT
    found = []
    for number, raws in enumerate(
        [(healthy, healthy, harmed), (healthy + ONE["F32"], healthy, harmed), (healthy, harmed, healthy)]
    ):
        (tmp_path / str(number)).mkdir()
        dcp(tmp_path / str(number), {"__0_0.distcp": raws})
        found.append(few_harmed(tmp_path / str(number)))
    assert None not in found
    assert found[0] == found[1] != found[2]


def test_a_name_of_half_a_character_is_no_end(tmp_path: Path) -> None:
    tensors = {"\ud800": ("F32", NAN["F32"] * COUNT), "w": ("F32", ONE["F32"] * COUNT)}
    safetensors(tmp_path / "model.safetensors", tensors)
    assert few_harmed(tmp_path) is not None


def test_nothing_is_said_of_what_the_time_did_not_reach(tmp_path: Path) -> None:
    saved(tmp_path / "1", "w1")

    sizes = [("model.safetensors", (tmp_path / "1" / "model.safetensors").stat().st_size)]
    until = time.monotonic() + 1.1
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 12:  # Of more than twenty, and behind the harmed one.
            hesitate(until)

    seen = sample(str(tmp_path / "1"), sizes, step, time_s=1.0)
    assert (seen.harm, seen.few_harmed) == ("model.safetensors: w1", None)


# --- very many files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 101, 198, 199])
def test_one_harmed_shard_of_two_hundred_is_found(tmp_path: Path, place: int) -> None:
    names = [f"model-{number:05}-of-00200.safetensors" for number in range(200)]
    for number, name in enumerate(names):
        safetensors(tmp_path / name, {"w": ("F32", (NAN if number == place else ONE)["F32"] * 200)})
    seen = sample(str(tmp_path), [(name, 999) for name in names], lambda: None, time_s=60.0)
    assert seen.harm == f"{names[place]}: w"


def test_where_a_look_takes_no_more_files_the_others_are_counted(tmp_path: Path) -> None:
    names = [f"model-{number:05}.safetensors" for number in range(FILES_MAX + 3)]
    for name in names:
        safetensors(tmp_path / name, {"w": ("F32", ONE["F32"] * 200)})
    seen = sample(str(tmp_path), [(name, 999) for name in names], lambda: None, time_s=60.0)
    assert (seen.harm, seen.torn) == (None, None)
    assert seen.unsampled == f"3 of {FILES_MAX + 3} files, of which a look takes no more"
    seen = sample(str(tmp_path), [(name, 999) for name in names[:FILES_MAX]], lambda: None, time_s=60.0)
    assert seen.unsampled is None


def test_where_the_time_ends_early_the_first_that_are_looked_into_stand_for_all(tmp_path: Path) -> None:
    names = [f"{number:03}.safetensors" for number in range(500)]
    wanted = look_into(str(tmp_path), names, lambda: None).wanted
    assert sorted(wanted) == names
    assert (wanted[0], wanted[FILES_FIRST - 1]) == (names[0], names[-1])
