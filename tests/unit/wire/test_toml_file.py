from __future__ import annotations

import tomllib

from governor.wire.toml_file import key_lines, line_of, show

TEXT = '''# A comment with [brackets] and "quotes
[policy]
name = "a # no comment [x]"   # and a comment with = in it
match = { stage = "s", other = "t" }

[budget]
alert_at = [
  0.5,  # ] not the end
  0.8,
]
"quoted key" = 1
dotted.inner.key = 2

[[rule]]
name = "first"
text = """
[not.a.table]
name = "not a key"
"""
[[rule]]
name = 'second'
literal = \'\'\'
x = "\'\'\'
for = "3 steps"

[ rule.sub ]
deep = "\\"]"
last = 1
'''


def test_every_key_has_its_line() -> None:
    tomllib.loads(TEXT)
    rows = TEXT.splitlines()
    lines = key_lines(TEXT)
    for path, start in {
        ("policy",): "[policy]",
        ("policy", "name"): 'name = "a #',
        ("policy", "match"): "match",
        ("budget", "alert_at"): "alert_at",
        ("budget", "quoted key"): '"quoted key"',
        ("budget", "dotted"): "dotted",
        ("budget", "dotted", "inner", "key"): "dotted",
        ("rule", 0): "[[rule]]",
        ("rule", 0, "name"): 'name = "first"',
        ("rule", 0, "text"): "text",
        ("rule", 1, "name"): "name = 'second'",
        ("rule", 1, "literal"): "literal",
        ("rule", 1, "for"): "for",
        ("rule", 1, "sub"): "[ rule.sub ]",
        ("rule", 1, "sub", "deep"): "deep",
        ("rule", 1, "sub", "last"): "last",
    }.items():
        assert rows[lines[path] - 1].startswith(start), path
    assert ("rule", 0, "not") not in lines
    assert ("not", "a", "table") not in lines


def test_a_key_inside_an_inline_table_is_found_at_the_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("policy", "match", "stage")) == 4


def test_a_missing_key_is_found_at_its_table_and_a_missing_table_at_the_top() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("rule", 1, "trigger")) == lines[("rule", 1)]
    assert line_of(lines, ("halt", "grace")) == 1


def test_paths_count_from_one_for_people() -> None:
    assert show(("rule", 0, "for")) == "rule[1].for"
    assert show(("policy", "name")) == "policy.name"
