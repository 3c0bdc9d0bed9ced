"""The thin hook that lives in the trainer: see attach()."""

from .attach import Shim, attach, resume
from .loader import wrap_loader
from .phases import phase
from .version import __version__

__all__ = ["Shim", "__version__", "attach", "phase", "resume", "wrap_loader"]
