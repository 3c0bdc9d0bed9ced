"""`python -m governor` is the command `costgov`, where the installed one is not on PATH."""

from __future__ import annotations

from governor.cli.main import main

if __name__ == "__main__":
    main()
