"""Loading models and scoring tokens. `policy.py` is the only caller of a model's forward."""
