"""What a governor asks to see of a rank: its last collectives, and a few profiled steps."""
