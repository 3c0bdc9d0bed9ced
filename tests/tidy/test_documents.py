"""What we tell people about this tree is true of this tree."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.tidy.sources import ROOT, text_files

DOCUMENTS = [name for name in ("README.md", "HACKING.md") if (ROOT / name).exists()]


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_command_named_exists(document: str) -> None:
    code = re.findall(r"```.*?```|`[^`\n]+`", (ROOT / document).read_text(), flags=re.DOTALL)
    named = {target for text in code for target in re.findall(r"(?:^|[\s`])make ([a-z][a-z-]*)", text)}
    assert named <= _targets(), f"{document} names targets the Makefile has not: {sorted(named - _targets())}"


def test_hacking_lists_every_make_command() -> None:
    helped = set(re.findall(r"^([a-z][a-z-]*):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    text = (ROOT / "HACKING.md").read_text()
    missing = sorted(target for target in helped - {"help"} if f"make {target}" not in text)
    assert not missing, f"HACKING.md does not explain: {missing}"


def test_links_between_our_documents_lead_somewhere() -> None:
    broken = []
    for name, text in text_files():
        if name.endswith(".md"):
            for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
                if "://" not in link and not ((ROOT / name).parent / link).exists():
                    broken.append(f"{name}: {link}")
    assert not broken, broken


def test_the_changelog_has_room_for_the_next_change() -> None:
    headings = re.findall(r"^## .*$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[:1] == ["## [Unreleased]"]


def test_both_distributions_have_one_version() -> None:
    governor = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shim = tomllib.loads((ROOT / "trainer_shim/pyproject.toml").read_text())["project"]
    assert governor["version"] == shim["version"]
    assert f"costgov-shim=={shim['version']}" in governor["dependencies"]
    for path in ("governor/__init__.py", "trainer_shim/version.py"):
        assert f'__version__ = "{governor["version"]}"' in (ROOT / path).read_text(), path


def test_every_dependency_of_the_daemon_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = re.search(r"^dependencies = \[\n(.*?)^\]", text, flags=re.DOTALL | re.MULTILINE)
    assert dependencies
    without = [line.strip() for line in dependencies[1].splitlines() if not re.search(r'",\s+# \w.*\.$', line)]
    assert not without, f"a dependency without a reason: {without}"


def test_the_shim_depends_on_nothing() -> None:
    assert tomllib.loads((ROOT / "trainer_shim/pyproject.toml").read_text())["project"]["dependencies"] == []


def test_every_lint_exclusion_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    ignored = re.search(r"^ignore = \[\n(.*?)^\]", text, flags=re.DOTALL | re.MULTILINE)
    assert ignored
    lines = ignored[1].splitlines()
    # One reason may stand above a family of rules that share it: RUF001, RUF002.
    reasoned = set()
    for line in lines:
        rule = re.match(r'\s*"([A-Z]+)\d+",(\s+# \w)?', line)
        if rule and rule[2]:
            reasoned.add(rule[1])
    without = [line.strip() for line in lines if (r := re.match(r'\s*"([A-Z]+)\d+"', line)) and r[1] not in reasoned]
    assert not without, f"an exclusion without a reason: {without}"
