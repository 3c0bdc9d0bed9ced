"""Parts of the adapter `kubernetes`."""
