"""A secret's file: what may be read of it, and why it is not."""

from __future__ import annotations

import os
from pathlib import Path

from governor.adapters.http.client import SecretFault, read_secret_file


def test_a_file_of_its_owner_and_group_is_read_up_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("s3cret")
    path.chmod(0o640)
    assert read_secret_file(path, 100) == b"s3cret"
    assert read_secret_file(path, 3) == b"s3c"


def test_whatever_is_no_secret_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert read_secret_file(path, 100) is SecretFault.NOT_FOUND
    path.write_text("s3cret")
    path.chmod(0o644)
    assert read_secret_file(path, 100) is SecretFault.READABLE_BY_EVERYONE
    assert read_secret_file(tmp_path, 100) is SecretFault.NOT_A_FILE
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert read_secret_file(tmp_path / "fifo", 100) is SecretFault.NOT_A_FILE, "and nobody waits for its writer"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert read_secret_file(tmp_path / "loop", 100) is SecretFault.NOT_READABLE
