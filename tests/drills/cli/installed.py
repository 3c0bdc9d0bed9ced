"""Where the command under test is, and how long any of it may take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COSTGOV = str(Path(sys.executable).parent / "costgov")
BOUND_S = 60.0
Costgov = Callable[..., "subprocess.CompletedProcess[str]"]
