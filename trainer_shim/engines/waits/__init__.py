"""What a step of a torch module waits for, and what it computes again."""
