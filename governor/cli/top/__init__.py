"""`costgov top`: a live screen of every run, with keys that halt and hold."""
