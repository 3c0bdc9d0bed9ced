"""Trainers of other people: one file each, and one more for what it saves. `select.py` above knows them apart."""
