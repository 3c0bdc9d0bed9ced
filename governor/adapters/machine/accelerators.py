"""Whether this machine has accelerators at all, by the kernel's word: a missing driver is not a missing GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
# PCI classes: displays (of vendors whose displays compute: servers have others for consoles), processing accelerators.
DISPLAY: Final = "0x03"
ACCELERATOR: Final = "0x12"
COMPUTING_VENDORS: Final = frozenset({"0x10de", "0x1002"})  # NVIDIA, AMD.


def accelerators(devices: Path = PCI_DEVICES) -> list[str] | None:
    """The PCI addresses of accelerators; None where the kernel does not tell."""
    try:
        found = sorted(devices.iterdir())
        return [device.name for device in found if _computes(device)]
    except OSError:
        return None


def _computes(device: Path) -> bool:
    kind, vendor = ((device / name).read_text(encoding="ascii").strip() for name in ("class", "vendor"))
    return kind.startswith(ACCELERATOR) or (kind.startswith(DISPLAY) and vendor in COMPUTING_VENDORS)
