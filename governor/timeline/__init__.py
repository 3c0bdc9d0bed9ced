"""Timelines: a few lines of text stand for hours of training, and a policy is judged by what it makes of them."""
