"""Grading of answers: what the final answer is, and whether it equals the reference. No torch, no models.

Import the parts: `extract`, `numbers`, `math_answers`, `choices`, `verdicts`, `worker`.
"""
