"""One rank that only notes what it was told, as attach() reads it: `told_rank.py PLACE`. It needs no torch."""

import json
import os
import sys
from pathlib import Path

from trainer_shim.launch import Launch, with_forwarded

environ = with_forwarded(os.environ)
launch = Launch(environ, None)
rank = environ.get("OMPI_COMM_WORLD_RANK", str(launch.rank))
told = {"run": launch.run, "stage": launch.stage, "labels": launch.labels, "socket": environ.get("COSTGOV_SOCKET")}
note = Path(sys.argv[1], "told." + rank)
note.with_suffix(".part" + rank).write_text(json.dumps(told))
note.with_suffix(".part" + rank).rename(note)
