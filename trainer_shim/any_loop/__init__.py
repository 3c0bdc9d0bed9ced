"""Hooks that no kind of engine owns: PyTorch's own functions, whoever calls them."""
