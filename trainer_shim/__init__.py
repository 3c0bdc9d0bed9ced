"""The thin hook that lives in the trainer: see attach()."""

# The module before the function of the same name: importing it later would put it in the function's place.
import trainer_shim.resume  # noqa: F401  isort: skip

from .attach import Shim, attach, resume
from .loader import wrap_loader
from .phases import phase
from .version import __version__

__all__ = ["Shim", "__version__", "attach", "phase", "resume", "wrap_loader"]
