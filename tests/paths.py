"""Where the tree is. A test asks here and may lie in any folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
