"""A checkpoint on request: which step, agreed with whom, saved how, and found again."""
