"""Where the governor is, who is believed to be one, and what has to reach it."""
