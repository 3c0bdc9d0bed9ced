"""What several readers of a run's recording must understand alike, though each keeps something else of it."""
