"""Where a node's policies are read from, and what start-up has to say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from governor.regular_file import read_bounded

POLICY_BYTES_MAX: Final = 256 * 1024  # A policy is a page; larger is a mistake in a path.
PACKAGED_POLICY: Final = Path(__file__).parent / "data" / "default.toml"  # policies/default.toml, installed with us.


class PolicyUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which file and why."""


def of_node(directory: Path) -> list[Path]:
    """The policies directory, else, where there is none, the packaged policy. An empty directory is a choice."""
    try:
        directory.stat()
    except FileNotFoundError:
        return [PACKAGED_POLICY]
    except OSError:
        pass  # There, and not for us: reading it says so. Another policy in its place would be a guess.
    return [directory]


def policy_texts(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Read policy files; a directory stands for its *.toml in order. PolicyUnreadable names what cannot be read."""
    texts = []
    for path in paths:
        try:
            files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        except OSError as error:  # A directory above it that we may not enter.
            raise PolicyUnreadable(f"{path}: cannot be read: {error.strerror}") from error
        for file in files:
            try:
                data = read_bounded(file, POLICY_BYTES_MAX)
                if len(data) > POLICY_BYTES_MAX:
                    raise PolicyUnreadable(f"{file}: larger than {POLICY_BYTES_MAX} bytes; is this a policy?")
                texts.append((str(file), data.decode()))
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                raise PolicyUnreadable(f"{file}: cannot be read: {reason}") from error
    return texts


def remarks(paths: Sequence[Path], directory: Path, names: Sequence[str]) -> list[str]:
    """What start-up says of the policies in force: nothing where they are what was given."""
    where = ", ".join(str(path) for path in paths)
    if not names:
        return [f"problem: NOTHING WILL BE JUDGED: {where} holds no *.toml; runs are metered and never halted"]
    if list(paths) == [PACKAGED_POLICY]:
        return [f"policies: {', '.join(names)}, the packaged one: there is no {directory}"]
    return []
