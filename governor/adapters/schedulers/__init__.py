"""Schedulers whose job a run may be: one module in this directory each. Packages beside them hold parts of one."""
