"""The golden runs are started here as ranks are for the engines of the shim."""

from tests.drills.shim_engines.conftest import warm

__all__ = ["warm"]
