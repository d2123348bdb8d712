"""The training loop: collect, update, log, checkpoint."""
