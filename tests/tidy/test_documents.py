"""What we tell people about this tree is true of this tree."""

from __future__ import annotations

import posixpath
import re
import tomllib

import pytest

from tests.tidy.sources import ROOT, sources, text_files

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


def _pages() -> dict[str, str]:
    return {name: text for name, text in text_files() if name.endswith(".md")}


def torn_tables(text: str) -> list[int]:
    """The lines at which a table goes on behind an empty line: a page shows what follows as it stands."""
    lines = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL).split("\n")
    begins = [n for n in range(1, len(lines) - 1) if lines[n].startswith("|") and not lines[n - 1].startswith("|")]
    return [n + 1 for n in begins if not re.match(r"\|[-:| ]+\|?$", lines[n + 1])]


def test_no_table_is_torn_by_an_empty_line() -> None:
    assert torn_tables("a\n\n| b |\n|---|\n| c |\n\n| d |\n| e |\n") == [7]
    torn = [f"{name}:{line}" for name, text in _pages().items() for line in torn_tables(text)]
    assert not torn, f"a row behind an empty line is no row of the table: {torn}"


def _links(name: str, text: str) -> set[tuple[str, str]]:
    """(path from the root, anchor) of every link of this page to a file of ours."""
    found = re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", text)
    return {
        (posixpath.normpath(posixpath.join(posixpath.dirname(name), link)) if link else name, anchor)
        for link, anchor in found
        if "://" not in link and (link or anchor)
    }


def _anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_our_documents_lead_somewhere() -> None:
    broken = []
    for name, text in _pages().items():
        for link, anchor in sorted(_links(name, text)):
            if not (ROOT / link).exists():
                broken.append(f"{name}: {link}")
            elif anchor and link.endswith(".md") and anchor not in _anchors((ROOT / link).read_text()):
                broken.append(f"{name}: {link} has no heading {anchor}")
    assert not broken, broken


def test_every_page_is_reachable_from_the_readme() -> None:
    pages = _pages()
    reached, open_ends = set[str](), ["README.md"]
    while open_ends:
        name = open_ends.pop()
        if name in pages and name not in reached:
            reached.add(name)
            open_ends += [link for link, _ in _links(name, pages[name])]
    lost = sorted(name for name in pages if name.startswith("docs/") and name not in reached)
    assert not lost, f"no link leads there, so nobody finds it; docs/README.md is the index: {lost}"


def test_the_index_names_every_page_in_its_kind() -> None:
    pages = _pages()
    listed = {link for link, _ in _links("docs/README.md", pages["docs/README.md"])}
    kinds = ("docs/start/", "docs/howto/", "docs/reference/", "docs/why/")
    missing = [name for name in pages if name.startswith(kinds) and name not in listed]
    assert not missing, f"docs/README.md has no line for: {missing}"
    strays = [name for name in pages if name.startswith("docs/") and not name.startswith((*kinds, "docs/adr/"))]
    assert strays == ["docs/README.md"], f"a page is of one of four kinds {kinds}, or a decision: {strays}"


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


def test_every_line_of_the_first_halt_is_explained() -> None:
    shown = (ROOT / "docs/start/halt.txt").read_text()
    said = (ROOT / "docs/start/first_halt.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \| ", said, flags=re.MULTILINE)
    explained = {word.removesuffix(" …") for row in rows for word in re.findall(r"`(.*?)`", row)}
    moments = re.findall(r"^ +[\d.]+ m?s  (\w+)", shown, flags=re.MULTILINE)
    foot = re.findall(r"^(\w+(?: \w+)?) {2,}\S", shown.partition("  halted  ")[2], flags=re.MULTILINE)
    assert len(moments) > 10
    assert len(foot) > 5
    assert set(moments + foot) <= explained, "docs/start/first_halt.md has no row for it"
    start = re.findall(r"^costgov: (.*)$", shown, flags=re.MULTILINE)
    assert not [line for line in start if not line.startswith(tuple(explained))]
    for step in re.findall(r"`training step (\S+) …`", said):
        assert f"training    step {step} " in shown


def test_the_one_test_that_hacking_names_exists() -> None:
    named = re.findall(r"pytest (tests/\S+\.py) -k (\w+)", (ROOT / "HACKING.md").read_text())
    assert named
    for file, word in named:
        assert re.search(rf"^def test_\w*{word}", (ROOT / file).read_text(), flags=re.MULTILINE), f"{file}: {word}"


def test_the_shim_s_wheel_has_every_folder_of_its_code() -> None:
    told = tomllib.loads((ROOT / "trainer_shim/pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {source.path.rpartition("/")[0] for source in sources("trainer_shim")}
    packages = {folder.replace("/", ".") for folder in folders}
    assert set(told["packages"]) == packages, f"trainer_shim/pyproject.toml lacks {packages - {*told['packages']}}"
    places = {package: package.removeprefix("trainer_shim.").replace(".", "/") for package in packages}
    assert told["package-dir"] == places | {"trainer_shim": "."}


def test_the_map_of_hacking_has_every_room() -> None:
    """Folders of code in governor, its core, adapters and reports, and in the shim. Deeper ones are for their own."""
    text = (ROOT / "HACKING.md").read_text(encoding="utf-8")
    drawn = text.partition("## Where things are")[2].partition("## Tests")[0]
    tops = (
        "governor",
        "governor/core",
        "governor/adapters",
        "governor/reports",
        "trainer_shim",
        "trainer_shim/engines",
    )
    folders = {source.path.rpartition("/")[0] for source in sources("governor", "trainer_shim")}
    rooms = {folder for folder in folders if folder.rpartition("/")[0] in tops}
    assert len(rooms) > 30, "the search finds them"
    missing = sorted(room for room in rooms if not re.search(rf"(?<![\w/]){room.rpartition('/')[2]}/", drawn))
    assert not missing, f"HACKING.md, Where things are, lacks {missing}"
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    inside = next(one for one in contracts if one["name"] == "Inside the core")
    floors = " → ".join(inside["layers"])
    assert floors in drawn, f"HACKING.md: inside the core: {floors}"
