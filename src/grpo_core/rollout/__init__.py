"""Sampling completions: the engine's protocol and the in-process torch engine."""
