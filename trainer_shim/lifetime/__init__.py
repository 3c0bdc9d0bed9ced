"""How long a training lasts in a process that may have several, and what of it lives no longer."""
