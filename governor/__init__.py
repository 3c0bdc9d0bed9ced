"""The governor: a per-node watchdog for LLM training. See README.md and docs/adr."""

__version__ = "0.1.0"
