"""Rewards: what a completion is worth. One protocol, parts that are kept, failures that are declared."""
