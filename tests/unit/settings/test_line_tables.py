"""[[line]] and [price] ask_again: what they become, and what is wrong with them in one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.app.settings_file import load_settings
from governor.core.base.units import UsdMicros
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import Lines, Metered
from governor.core.money.prices import Day, span_of
from governor.settings.money import LINES_MAX, lines_of

TODAY = Day(span_of("2026-11-21")[0])
DISK = '[[line]]\nkind = "storage"\nname = "vol-1 gp3"\ngb = 500\nprice_usd_per_gb_month = 0.08\n'


def read(directory: Path, text: str) -> tuple[Lines | None, list[str]]:
    path = directory / "costgov.toml"
    path.write_text(text)
    path.chmod(0o600)
    found, problems = load_settings(path, environ={"HOME": "/nonexistent"})
    return (lines_of(found.line, TODAY) if found is not None else None), problems


def test_every_kind_of_line(tmp_path: Path) -> None:
    text = DISK + 'source = "list"\nas_of = "2026-11"\n'
    text += '[[line]]\nkind = "fixed"\nname = "support"\nprice_usd_per_hour = 1.5\n'
    text += '[[line]]\nkind = "fixed"\nname = "fee"\nprice_usd_per_launch = 2\n'
    text += '[[line]]\nkind = "egress"\nname = "out"\nprice_usd_per_gb = 0.09\n'
    lines, problems = read(tmp_path, text)
    assert problems == []
    said = ("costgov.toml", "2026-11-21")
    assert lines == Lines(
        (
            Metered(Line(LineKind.STORAGE, "vol-1 gp3", Unit.GB_MONTH, UsdMicros(80_000), "list", "2026-11"), 500),
            Metered(Line(LineKind.FIXED, "support", Unit.HOUR, UsdMicros(1_500_000), *said)),
        ),
        (Line(LineKind.FIXED, "fee", Unit.PIECE, UsdMicros(2_000_000), *said),),
        (Line(LineKind.EGRESS, "out", Unit.GB, UsdMicros(90_000), *said),),
    )
    assert lines.usd_micros_per_hour == 1_500_000 + 54_795, "500 GB x $0.08 / 730 h = $0.0547945, rounded up"
    assert lines.texts[0] == "vol-1 gp3: $0.0548/h (500 GB at $0.0800/GB-month; list, 2026-11)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DISK.replace("gb = 500\n", ""), "line[1]: gb is missing"),
        (DISK.replace("gb = 500", "gb = 0"), "line[1].gb: must be greater than or equal to 1"),
        (DISK.replace("0.08", "0"), "line[1].price_usd_per_gb_month: must be greater than 0"),
        (
            DISK.replace("0.08", "-1"),
            "line[1].price_usd_per_gb_month: -1 is not an amount in dollars; write it without",
        ),
        (DISK.replace("0.08", "nan"), "line[1].price_usd_per_gb_month: "),
        (DISK.replace("0.08", "1e-9"), "line[1]: price_usd_per_gb_month is below a millionth"),
        (DISK.replace("price_usd_per_gb_month", "price_usd_per_gb"), 'a line of kind "storage" takes exactly one of'),
        (DISK + "price_usd_per_hour = 1\n", "it has price_usd_per_hour and price_usd_per_gb_month"),
        (DISK.replace("price_usd_per_gb_month", "price_usd_per_hour"), "line[1]: gb counts beside"),
        (DISK.replace("storage", "disk"), "line[1].kind: must be 'storage', 'fixed' or 'egress'"),
        (DISK.replace("vol-1 gp3", "node"), 'two lines are called "node"'),
        (DISK + DISK, 'two lines are called "vol-1 gp3"'),
        (DISK + 'as_of = "yesterday"\n', '"yesterday" is not a date'),
        (DISK + "size = 3\n", "line[1].size: unknown key"),
        (DISK * (LINES_MAX + 1), "line: "),
        ('[price]\nask_again = "5s"\n', 'price.ask_again: "5s" is more often than every 10s'),
        ('[price]\nask_again = "sometimes"\n', 'price.ask_again: "sometimes" is not a duration'),
        ("[price]\nask_again = 5\n", "price.ask_again: "),
    ],
)
def test_what_is_wrong_is_said_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    lines, problems = read(tmp_path, text)
    assert lines is None
    assert len(problems) == 1
    assert problem in problems[0]
    assert problems[0].startswith(str(tmp_path)), "where it is written"
