"""Reading a file that holds a secret: what is checked is what is read, and a file that others may read is refused."""

from __future__ import annotations

import os
import stat
from enum import Enum
from pathlib import Path


class SecretFault(Enum):
    """Why there is no secret. The values stand in reasons, behind whatever names the file."""

    NOT_FOUND = "not_found"
    NOT_A_FILE = "not_a_file"
    READABLE_BY_EVERYONE = "readable_by_everyone"
    NOT_READABLE = "not_readable"


def read_secret_file(path: Path, bytes_max: int) -> bytes | SecretFault:
    """Return at most `bytes_max` bytes; never raises OSError. Its group may read it: that is the service's own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # A FIFO would hold us.
        with open(fd, "rb") as file:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                return SecretFault.NOT_A_FILE
            return SecretFault.READABLE_BY_EVERYONE if mode & stat.S_IROTH else file.read(bytes_max)
    except FileNotFoundError:
        return SecretFault.NOT_FOUND
    except IsADirectoryError:
        return SecretFault.NOT_A_FILE
    except OSError:
        return SecretFault.NOT_READABLE
