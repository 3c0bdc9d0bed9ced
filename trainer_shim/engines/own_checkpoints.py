"""Checkpoints that the framework or the script saved without us, as resume() is told of them.

A saver says where each is and of which step. Whether it is fit to go on from resume() itself judges, as the governor
does before it names one: by saving/weights_sample.py, and by nothing else.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional


def manifest(step: Optional[int], path: str, last_file: str) -> Dict[str, Any]:
    """Return one without files: nobody has listed them. `last_file`: written last, its time is the checkpoint's."""
    return {"step": step, "path": path, "kind": "good", "created_unix_s": os.path.getmtime(last_file)}
