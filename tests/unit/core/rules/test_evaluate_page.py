"""What docs/reference/rules.md shows is what the reader takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from governor.policies.check import check, show, shown_lines
from governor.policies.files import policy_texts
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "rules.md").read_text()


def written(home: Path) -> Path:
    """Every file of the page, where it says that it stands."""
    for text in re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL):
        file = home / re.match(r"# (\S+)", text)[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return home / "policies.d"


def test_the_policies_on_the_page_are_valid_together(tmp_path: Path) -> None:
    lines, code = check(policy_texts([written(tmp_path)]))
    assert code == 0, lines
    assert sum(line.startswith(f"{tmp_path}/policies.d/") for line in lines) == 2


def test_the_values_that_the_page_shows_are_in_force(tmp_path: Path) -> None:
    (name, shown), = show(policy_texts([written(tmp_path) / "stage1.toml"]))  # fmt: skip
    said = {" ".join(line.split()).replace(f"{tmp_path}/", "") for line in shown_lines(name, shown)}
    told = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert told is not None
    missing = {" ".join(line.split()) for line in told[1].splitlines()} - said
    assert not missing


@pytest.mark.parametrize("word", ["all", "match", "warmup", "for", "cooldown", "mode", "resume_with"])
def test_every_key_around_a_trigger_is_taught(word: str) -> None:
    assert f"\n{word} = " in PAGE
