"""`costgov plan sparse` as people and programs read it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from governor.cli.plan.sparse import sparse


def run(*args: str) -> Result:
    return CliRunner().invoke(sparse, args)


def test_json_has_a_row_for_each_model_and_length_and_says_what_is_not_known() -> None:
    found = json.loads(run("--model", "llama3-8b", "--model", "stage4", "--seq-len", "32768", "--json").stdout)
    assert [(row["model"], row["k"], row["indexer"], row["pays"]) for row in found["rows"]] == [
        ("Llama3-8B", 2048, "8 x 64", True),
        ("70B MoE-large", 2048, "8 x 64", True),
    ]
    assert found["starts"]["Llama3-8B"] == 16384
    assert any("DeepSpeed has no such attention" in limit["text"] for limit in found["limits"])


def test_a_size_of_ones_own_counts() -> None:
    row = json.loads(run("--model", "llama3-8b", "--seq-len", "131072", "--indexer", "64x128", "--json").stdout)[
        "rows"
    ][0]
    assert not row["pays"]
    assert row["flops_ratio"] == pytest.approx(0.97, abs=0.005)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "nothing-of-the-kind"], "no model named"),
        (["--gpu", "H900"], "no GPU named"),
        (["--indexer", "8by64"], "such as 8x64"),
        (["--indexer", "0x64"], "such as 8x64"),
        (["--plot", "x.png"], ".html or .svg"),
        (["--plot", "no/such/place.svg"], "can be written"),
    ],
)
def test_a_wrong_word_is_one_line(args: list[str], words: str) -> None:
    found = run(*args)
    assert found.exit_code == 1
    assert words in found.output


def test_drawings_are_whole_and_fetch_nothing(tmp_path: Path) -> None:
    for name in ("plot.svg", "plot.html"):
        assert run("--model", "DeepSeek-V3", "--plot", str(tmp_path / name)).exit_code == 0
    picture = (tmp_path / "plot.svg").read_text()
    root = ElementTree.fromstring(picture)
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    heights = [float(point.split(",")[1]) for point in lines[0].attrib["points"].split()]
    # DeepSeek's own indexer: more FLOPs than dense at 4K, fewer at 128K, and nothing but dense at 2K.
    assert heights[1] > heights[0] > heights[-1]
    for text in (picture, (tmp_path / "plot.html").read_text()):
        assert not [word for word in ("src=", "href=", "@import", "url(", "<script") if word in text]
