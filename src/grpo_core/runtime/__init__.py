"""What a process needs around the maths: checkpoints, seeds, memory figures, interrupts."""
