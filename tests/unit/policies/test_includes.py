"""One policy out of several files: what lies over what, and whose line an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.core.base.findings import Response
from governor.core.base.policy import Mode, Policy
from governor.policies.files import DEPTH_MAX, FILES_MAX, PolicyUnreadable, policy_texts
from governor.policies.loading import policy_loader
from governor.policies.parse import load_policies

BASE = """
[policy]
name = "base"
[halt]
grace = "5m"
term_grace = "7s"
[[rule]]
name = "nan"
trigger = "nonfinite"
response = "halt"
skipped_streak = 9
[[rule]]
name = "hang"
trigger = "hang"
response = "halt"
"""
SITE = """
include = ["base/llm.toml"]
[policy]
name = "site"
[halt]
grace = "1m"
[[rule]]
name = "own"
trigger = "data_starvation"
response = "warn"
"""


def write(home: Path, **texts: str) -> None:
    """Files by name, "__" for "/" and without the ending."""
    for name, text in texts.items():
        file = home / f"{name.replace('__', '/')}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def loaded(*paths: Path) -> Policy:
    policies, errors = load_policies(policy_texts(paths))
    assert policies is not None, [str(error) for error in errors]
    return policies.policies[0]


def refused(home: Path, file: str = "site.toml") -> list[str]:
    """What is wrong, with paths below `home`."""
    try:
        policies, errors = load_policies(policy_texts([home / file]))
        assert policies is None
        said = [str(error) for error in errors]
    except PolicyUnreadable as unreadable:
        said = list(unreadable.problems)
    return [line.replace(f"{home}/", "") for line in said]


def test_what_includes_lies_over_what_is_included_key_by_key_and_rule_by_rule(tmp_path: Path) -> None:
    write(tmp_path, site=SITE, base__llm=BASE)
    policy = loaded(tmp_path / "site.toml")
    assert (policy.name, policy.source) == ("site", f"{tmp_path}/site.toml")
    assert (policy.halt.grace_ns, policy.halt.term_grace_ns) == (60 * 10**9, 7 * 10**9)
    assert [rule.name for rule in policy.rules] == ["nan", "hang", "own"]
    assert policy.rules[0].source == f"{tmp_path}/base/llm.toml:7"
    assert policy.rules[2].source == f"{tmp_path}/site.toml:7"


def test_a_rule_that_names_no_trigger_changes_the_keys_that_it_gives(tmp_path: Path) -> None:
    write(tmp_path, site=SITE + '[[rule]]\nname = "nan"\nmode = "observe"\nresponse = "warn"\n', base__llm=BASE)
    nan = loaded(tmp_path / "site.toml").rules[0]
    assert (nan.mode, nan.response, nan.params["skipped_streak"]) == (Mode.OBSERVE, Response.WARN, 9)


def test_a_rule_that_names_its_trigger_stands_in_the_place_of_the_other(tmp_path: Path) -> None:
    write(tmp_path, site=SITE + '[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nresponse = "halt"\n', base__llm=BASE)
    policy = loaded(tmp_path / "site.toml")
    assert [rule.name for rule in policy.rules] == ["nan", "hang", "own"]
    assert policy.rules[0].params["skipped_streak"] == 5, "nothing of the rule beneath is left"


def test_of_several_includes_the_later_lies_over_the_earlier(tmp_path: Path) -> None:
    write(tmp_path, site='include = ["a.toml", "b.toml"]\n[policy]\nname = "site"\n')
    write(tmp_path, a='[halt]\ngrace = "1m"\nterm_grace = "1s"\n', b='[halt]\ngrace = "2m"\n')
    halt = loaded(tmp_path / "site.toml").halt
    assert (halt.grace_ns, halt.term_grace_ns) == (120 * 10**9, 10**9)


def test_what_two_includes_include_lies_beneath_both(tmp_path: Path) -> None:
    write(
        tmp_path,
        site='include = ["changed.toml", "plain.toml"]\n[policy]\nname = "p"\n',
        changed='include = ["base.toml"]\n[halt]\ngrace = "5m"\n',
        plain='include = ["base.toml"]\n[halt]\nkill_grace = "3s"\n',
        base='[halt]\ngrace = "1m"\nkill_grace = "1s"\n',
    )
    halt = loaded(tmp_path / "site.toml").halt
    assert (halt.grace_ns, halt.kill_grace_ns) == (300 * 10**9, 3 * 10**9)


def test_a_byte_order_mark_is_none_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(b"\xef\xbb\xbf[policy]\r\nname = 'p'\r\n")
    assert loaded(tmp_path / "site.toml").name == "p"


def test_drop_ins_lie_over_everything_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, site=SITE, base__llm=BASE)
    (tmp_path / "site.d").mkdir()
    (tmp_path / "site.d" / "20-b.toml").write_text('[halt]\ngrace = "3m"\n[[rule]]\nname = "own"\nmode = "observe"\n')
    (tmp_path / "site.d" / "10-a.toml").write_text('[halt]\ngrace = "2m"\nkill_grace = "3s"\n')
    policy = loaded(tmp_path / "site.toml")
    assert (policy.halt.grace_ns, policy.halt.kill_grace_ns) == (180 * 10**9, 3 * 10**9)
    assert policy.rules[2].mode is Mode.OBSERVE
    assert loaded(tmp_path) == policy, "as one of a directory it is the same; what it includes is no policy"


@pytest.mark.parametrize(
    ("site", "base", "error"),
    [
        (SITE + "grase = 1\n", BASE, 'site.toml:11: rule[1].grase: unknown key for trigger "data_starvation"'),
        (SITE, BASE + "grase = 1\n", 'base/llm.toml:16: rule[2].grase: unknown key for trigger "hang"'),
        (SITE, BASE.replace('"5m"', '"x"').replace("7s", "y"), 'base/llm.toml:6: halt.term_grace: "y" is not a dur'),
        (SITE.replace('"1m"', '"0s"'), BASE, "site.toml:6: halt.grace: leaves no time for checkpoint"),
        (
            SITE + '[[rule]]\nname = "nan"\ntight_min = "3s"',
            BASE,
            "site.toml:13: rule[2].tight_min: unknown key",
        ),
        (SITE + '[[rule]]\nname = "nan"\nfor = "3 stepz"', BASE, 'site.toml:13: rule[2].for: "3 stepz" is not a time'),
        (SITE + '[[rule]]\nname = "new"\nmode = "observe"', BASE, "site.toml:11: rule[2].response: is missing"),
        (
            SITE + '[[rule]]\nname = "hangs"\nmode = "observe"',
            BASE,
            'site.toml:12: rule[2].name: "hangs" has no trigger, and is no rule of the files beneath; did',
        ),
        (
            SITE + '[[rule]]\nname = "nan"\ntrigger = "hang"\n[[rule]]\nname = "nan"\nmode = "observe"',
            BASE,
            'site.toml:15: rule[3].name: "nan" is the name of rule[1] too',
        ),
        (
            SITE,
            BASE + '[[rule]]\nname = "nan"\ntrigger = "hang"\nresponse = "warn"',
            'base/llm.toml:17: rule[3].name: "nan" is the name',
        ),
        (SITE, BASE + "x = ", "base/llm.toml:16: not TOML: "),
        (
            SITE + '[[rule]]\nname = "hang"\nmatch = { stage = 3 }',
            BASE + '[rule.match]\nstage = "s1"\n',
            "site.toml:13: rule[2].match.stage: is not text",
        ),
        (SITE, BASE + "[polcy]\n", "base/llm.toml:16: polcy: unknown table"),
        ("halt = 3\n" + SITE.replace('[halt]\ngrace = "1m"', ""), BASE, "site.toml:1: halt: is not a table"),
    ],
)
def test_an_error_names_the_file_in_which_the_value_stands(tmp_path: Path, site: str, base: str, error: str) -> None:
    write(tmp_path, site=site, base__llm=base)
    errors = refused(tmp_path)
    assert any(line.startswith(error) for line in errors), errors


def test_what_is_wrong_in_a_file_that_two_policies_include_is_said_once(tmp_path: Path) -> None:
    write(tmp_path, site=SITE, other=SITE.replace('"site"', '"other"'), base__llm=BASE + "grase = 1\n")
    policies, errors = load_policies(policy_texts([tmp_path]))
    assert policies is None
    assert len([error for error in errors if error.key == "rule[2].grase"]) == 1


INCLUDES = '[policy]\nname = "p"\n'


@pytest.mark.parametrize(
    ("include", "error"),
    [
        ('"base/llm.toml"', "is not a list of files; write include ="),
        ("[3]", "is not a list of files"),
        ('[""]', "is not a list of files"),
        ('["gone.toml"]', '"gone.toml" is not there (site.toml > gone.toml)'),
        ('["base/*.toml"]', '"base/*.toml" is a pattern: name each file, or put them into site.d as drop-ins'),
        ('["base"]', '"base" is not a file (site.toml > base)'),
        ('["../x.toml"]', '"../x.toml" leads out of '),
        ('["/etc/passwd"]', '"/etc/passwd" leads out of '),
        ('["base/../../x.toml"]', '"base/../../x.toml" leads out of '),
        ('["link.toml"]', '"link.toml" leads out of '),
        ('["loop.toml"]', '"loop.toml" cannot be found'),
        ('["a\\u0000b"]', "cannot be found"),
        ('["site.toml"]', '"site.toml" includes itself (site.toml > site.toml)'),
        ('["base/back.toml"]', None),
    ],
)
def test_what_is_not_followed_is_said_in_one_line_with_the_way_to_it(
    tmp_path: Path, include: str, error: str | None
) -> None:
    write(tmp_path, x="", home__site=f"# First.\ninclude = {include}\n{INCLUDES}", home__base__llm=BASE)
    home = tmp_path / "home"
    (home / "link.toml").symlink_to(tmp_path / "x.toml")
    (home / "loop.toml").symlink_to(home / "loop.toml")
    (home / "base" / "back.toml").write_text('include = ["../site.toml"]')
    if error is None:
        (line,) = refused(home)
        assert line.startswith('base/back.toml:1: include: "../site.toml" leads out of '), line
        assert line.endswith("(site.toml > base/back.toml > ../site.toml)"), line
        return
    (line,) = refused(home)
    assert line.startswith("site.toml:2: include: "), line
    assert error in line


def test_a_circle_is_named_and_ends(tmp_path: Path) -> None:
    write(tmp_path, site='include = ["a.toml"]\n', a='include = ["b.toml"]\n', b='\ninclude = ["a.toml"]\n')
    assert refused(tmp_path) == ['b.toml:2: include: "a.toml" includes itself (site.toml > a.toml > b.toml > a.toml)']


def test_a_chain_and_a_crowd_of_includes_end_at_their_limits(tmp_path: Path) -> None:
    for depth in range(DEPTH_MAX + 1):
        (tmp_path / f"{depth}.toml").write_text(f'include = ["{depth + 1}.toml"]\n')
    (tmp_path / f"{DEPTH_MAX + 1}.toml").write_text(INCLUDES)
    assert loaded(tmp_path / "1.toml").name == "p", "eight are followed"
    (line,) = refused(tmp_path, "0.toml")
    assert line.startswith('8.toml:1: include: "9.toml" is the 9th file deep; 8 are followed (0.toml > 1.toml > ')
    # Each includes the next twenty times: without a limit 20 ** 7 files would be read.
    for depth in range(1, DEPTH_MAX):
        (tmp_path / f"{depth}.toml").write_text(f"include = {[f'{depth + 1}.toml'] * 20}\n")
    (tmp_path / f"{DEPTH_MAX}.toml").write_text(INCLUDES)
    assert loaded(tmp_path / "1.toml").name == "p"
    crowd = [f"of{n}.toml" for n in range(FILES_MAX)]
    for name in crowd:
        (tmp_path / name).write_text("")
    (tmp_path / "1.toml").write_text(f"include = {crowd}\n{INCLUDES}")
    (line,) = refused(tmp_path, "1.toml")
    assert line.endswith(f"of63.toml: is one file more than the {FILES_MAX} that a policy may be made of")


def test_drop_ins_over_nothing_and_drop_ins_that_include_are_refused(tmp_path: Path) -> None:
    write(tmp_path, site=SITE, base__llm=BASE)
    for name in ("site.d", "other.d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.toml").write_text('[halt]\ngrace = "2m"\n')
    assert refused(tmp_path, ".") == ["other.d: its files would lie over other.toml, which is not there"]
    (tmp_path / "site.d" / "a.toml").write_text('\ninclude = ["b.toml"]\n')
    assert refused(tmp_path) == ["site.d/a.toml:2: include: a drop-in includes nothing; the policy beneath it may"]


def test_a_text_without_a_directory_includes_nothing() -> None:
    _, errors = load_policies([("p.toml", f'{INCLUDES}include = ["x.toml"]')])
    assert [str(error) for error in errors] == [
        "p.toml:3: policy.include: unknown key; it stands above the first table"
    ]
    _, errors = load_policies([("p.toml", f'include = ["x.toml"]\n{INCLUDES}')])
    assert [str(error) for error in errors] == ["p.toml:1: include: cannot be followed: this text has no directory"]


def test_a_reload_sees_what_is_included_and_laid_over(tmp_path: Path) -> None:
    write(tmp_path, site=SITE, base__llm=BASE)
    load = policy_loader(lambda: [tmp_path], None, lambda: True)
    digests = set()
    for change in (
        lambda: None,
        lambda: write(tmp_path, base__llm=BASE.replace("7s", "8s")),
        lambda: write(tmp_path, **{"site.d__a": '[halt]\ngrace = "2m"\n'}),
    ):
        change()
        policies, problems = load()
        assert policies is not None, problems
        digests.add(policies.digest)
    assert len(digests) == 3, "the digest is of everything that was read"
    assert policies.policies[0].halt.grace_ns == 120 * 10**9
    write(tmp_path, base__llm=BASE + "grase = 1")
    (problem,) = load()[1]
    assert problem.startswith(f"{tmp_path}/base/llm.toml:16: rule[2].grase: unknown key"), problem


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = " + "[" * 200_000, "p.toml:1: brackets in brackets"),
        ("x = " + "{a = " * 40_000, "p.toml:1: brackets in brackets"),
        ("\n" + "a." * 100_000 + "a = 1", "p.toml:2: more than 100 dots in a line"),
        ("\n[" + "a." * 100_000 + "a]", "p.toml:2: more than 100 dots in a line"),
    ],
)
def test_nesting_without_end_is_one_line(text: str, error: str) -> None:
    """Before, the first two were a traceback, and the others took gigabytes."""
    policies, errors = load_policies([("p.toml", text)])
    assert policies is None
    (line,) = map(str, errors)
    assert line.startswith(error)
