"""The thin hook that lives in the trainer: see attach()."""
__version__ = "0.1.0"
