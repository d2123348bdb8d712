"""The pieces of `benchmarks/reward_hacking.py`: languages, rewards, tasks, arms, runs, and the report."""
