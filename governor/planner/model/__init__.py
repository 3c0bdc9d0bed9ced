"""The planner's model: memory, step time and dollars of a run, from first principles and measured constants."""
