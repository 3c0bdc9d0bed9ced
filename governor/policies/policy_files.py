"""Where a node's policies are read from, and what start-up has to say of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from governor.policies.policy_includes import PolicyUnreadable, layered, unused_drop_ins
from governor.policies.policy_layers import PolicyText

PACKAGED_POLICY: Final = Path(__file__).parents[1] / "data" / "default.toml"  # policies/default.toml.


def of_node(directory: Path) -> list[Path]:
    """The policies directory, else, where there is none, the packaged policy. An empty directory is a choice."""
    try:
        directory.stat()
    except FileNotFoundError:
        return [PACKAGED_POLICY]
    except OSError:
        pass  # There, and not for us: reading it says so. Another policy in its place would be a guess.
    return [directory]


def policy_texts(paths: Sequence[Path]) -> list[PolicyText]:
    """Read policies, each with what it includes and its drop-ins; a directory stands for its *.toml in order.

    PolicyUnreadable has a line for each that cannot be read.
    """
    texts = []
    problems: list[str] = []
    for path in paths:
        try:
            files = [path]
            if path.is_dir():
                os.listdir(path)  # Of a directory that we may not read, glob says that it is empty.
                files = sorted(path.glob("*.toml"))
                problems.extend(unused_drop_ins(path))
        except OSError as error:  # A directory above it that we may not enter.
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
    """What start-up says of the policies in force: nothing where they are what was given."""
    where = ", ".join(str(path) for path in paths)
    if not names:
        return [f"problem: NOTHING WILL BE JUDGED: {where} holds no *.toml; runs are metered and never halted"]
    if list(paths) == [PACKAGED_POLICY]:
        return [f"policies: {', '.join(names)}, the packaged one: there is no {directory}"]
    return []
