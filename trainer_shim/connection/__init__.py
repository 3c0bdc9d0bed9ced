"""Where the governor is, who is believed to be one, what has to reach it, and which start of which launch this is."""
