"""What a drill needs and a machine may lack."""

from __future__ import annotations

import importlib.util

import pytest


def needs(*modules: str) -> None:
    """Skip the file that says so where one is not installed. Nothing is imported: DeepSpeed takes seconds."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}", allow_module_level=True)
