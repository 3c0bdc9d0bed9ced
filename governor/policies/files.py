"""Follows a policy's includes and drop-ins from file to file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from governor.policies.keys import INCLUDE, PolicyError
from governor.policies.reader import PolicyText, includes
from governor.wire.toml_file import read_bounded

POLICY_BYTES_MAX: Final = 256 * 1024  # A policy is one page. A larger file is a wrong path.
DEPTH_MAX: Final = 8  # A reader has to follow the includes too.
# For one policy. With more, the values in force are not clear to a reader.
FILES_MAX: Final = 64


class PolicyUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """Each of `problems` is one line: the file and the reason."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def layered(file: Path) -> PolicyText:
    """A policy file with its includes and drop-ins. PolicyUnreadable names the file and the path of includes to it."""
    gathered = _Gathered()
    gathered.follow(file, ())
    drop_ins = file.with_suffix(".d")
    if file.suffix == ".toml" and drop_ins.is_dir():
        for over in sorted(drop_ins.glob("*.toml")):
            gathered.lay_over(over)
    return PolicyText(str(file), tuple(gathered.layers))


def unused_drop_ins(directory: Path) -> list[str]:
    """A line for each drop-in directory whose policy does not exist."""
    return [
        f"{drop_ins}: its files would lie over {drop_ins.with_suffix('.toml').name}, which is not there"
        for drop_ins in sorted(directory.glob("*.d"))
        if not drop_ins.with_suffix(".toml").exists() and any(drop_ins.glob("*.toml"))
    ]


class _Gathered:
    """The layers of one policy so far, lowest first."""

    def __init__(self) -> None:
        self.layers: list[tuple[str, str]] = []
        self._laid: set[Path] = set()
        self._read = 0

    def follow(self, file: Path, above: tuple[Path, ...]) -> None:
        """Read a file after everything that it includes. `above`: the files that include it, outermost first."""
        text = self._text(file)
        names, line, error = includes(str(file), text)
        if error is not None:
            raise PolicyUnreadable(str(error))
        chain = (*above, file)
        for name in names:
            try:
                self._include(file, name, chain)
            except _Refused as refused:
                way = " > ".join(str(one) for one in (*chain, name))
                raise PolicyUnreadable(str(PolicyError(str(file), line, INCLUDE, f"{refused} ({way})"))) from None
        self.layers.append((str(file), text))

    def _include(self, file: Path, name: str, chain: tuple[Path, ...]) -> None:
        included = file.parent / name
        try:
            home, target = file.parent.resolve(), included.resolve()
        except (OSError, ValueError, RuntimeError) as error:  # A loop of links, or a NUL in the name.
            raise _Refused(f'"{name}" cannot be found: {error}') from error
        if Path(name).is_absolute() or not target.is_relative_to(home):
            raise _Refused(f'"{name}" leads out of {file.parent}: a policy includes what lies beside or below it')
        if target in [one.resolve() for one in chain]:
            raise _Refused(f'"{name}" includes itself')
        if target in self._laid:
            # A later layer may have changed it. A second copy would undo that change.
            return
        if len(chain) > DEPTH_MAX:
            raise _Refused(f'"{name}" is the {len(chain)}th file deep; {DEPTH_MAX} are followed')
        if any(char in name for char in "*?[") and not target.exists():
            raise _Refused(f'"{name}" is a pattern: name each file, or put them into {chain[0].stem}.d as drop-ins')
        if not target.exists():
            raise _Refused(f'"{name}" is not there')
        if not target.is_file():
            raise _Refused(f'"{name}" is not a file')
        self._laid.add(target)
        self.follow(included, chain)

    def lay_over(self, file: Path) -> None:
        text = self._text(file)
        names, line, error = includes(str(file), text)
        if names:
            error = PolicyError(str(file), line, INCLUDE, "a drop-in includes nothing; the policy beneath it may")
        if error is not None:
            raise PolicyUnreadable(str(error))
        self.layers.append((str(file), text))

    def _text(self, file: Path) -> str:
        self._read += 1
        if self._read > FILES_MAX:
            raise PolicyUnreadable(f"{file}: is one file more than the {FILES_MAX} that a policy may be made of")
        try:
            data = read_bounded(file, POLICY_BYTES_MAX)
            if len(data) > POLICY_BYTES_MAX:
                raise PolicyUnreadable(f"{file}: larger than {POLICY_BYTES_MAX} bytes; is this a policy?")
            return data.removeprefix(codecs.BOM_UTF8).decode()  # With the byte order mark that some editors write.
        except OSError as error:
            raise PolicyUnreadable(f"{file}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PolicyUnreadable(f"{file}: not UTF-8 (byte {error.start}); save it as UTF-8") from error


class _Refused(Exception):  # noqa: N818 - the condition is the name.
    """An include that is not followed, with the reason."""


# Where a node's policies are read from, and what start-up reports about them.


PACKAGED_POLICY: Final = Path(__file__).parents[1] / "data" / "default.toml"  # A link to policies/default.toml.


def of_node(directory: Path) -> list[Path]:
    """The policies directory, or the packaged policy when it does not exist. An empty directory is a choice."""
    try:
        directory.stat()
    except FileNotFoundError:
        return [PACKAGED_POLICY]
    except OSError:
        # It exists and we may not read it. Reading it reports that. Another policy in its place would be a guess.
        pass
    return [directory]


def policy_texts(paths: Sequence[Path]) -> list[PolicyText]:
    """Read policies, each with its includes and drop-ins. A directory stands for its *.toml files in order.

    PolicyUnreadable has one line for each file that cannot be read.
    """
    texts = []
    problems: list[str] = []
    for path in paths:
        try:
            files = [path]
            if path.is_dir():
                os.listdir(path)  # glob reports a directory that we may not read as empty.
                files = sorted(path.glob("*.toml"))
                problems.extend(unused_drop_ins(path))
        except OSError as error:  # We may not enter a parent directory.
            problems.append(f"{path}: cannot be read: {error.strerror}")
            continue
        for file in files:
            try:
                texts.append(layered(file))
            except PolicyUnreadable as unreadable:
                problems.extend(unreadable.problems)
    if problems:
        raise PolicyUnreadable(*problems)
    return texts


def remarks(paths: Sequence[Path], directory: Path, names: Sequence[str]) -> list[str]:
    """What start-up reports about the policies in force. Empty when they are the ones that were given."""
    where = ", ".join(str(path) for path in paths)
    if not names:
        return [f"problem: NOTHING WILL BE JUDGED: {where} holds no *.toml; runs are metered and never halted"]
    if list(paths) == [PACKAGED_POLICY]:
        return [f"policies: {', '.join(names)}, packaged with costgov; {directory} does not exist"]
    return []
