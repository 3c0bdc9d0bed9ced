"""Timelines: a few lines of text describe hours of training, and a test compares a policy's verdicts on them."""
