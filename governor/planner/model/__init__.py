"""The planner: memory, step time and dollars of a training run, from first principles and a few measured constants."""
