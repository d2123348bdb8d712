"""Prompts: from files, the hub, reasoning-gym, a built-in task or Python, in a resumable order. No torch."""
