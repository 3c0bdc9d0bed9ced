"""NVFP4 emulated on any machine: what its rounding does to numbers and to the loss, not to speed or memory."""
