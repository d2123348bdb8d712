"""A worker of vs_trl.py: TRL's PPOTrainer with policy, reference, value and reward model, all of one size.

Runs in an environment of its own, see vs_trl.py. The pad token must not be the EOS token: this trainer takes every
token that equals it for padding, inside prompts too.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import warnings
from typing import Any

import torch
import work
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, set_seed
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

warnings.filterwarnings("ignore")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--reward-model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sys.stdout = sys.stderr  # the trainer prints; standard output is for the benchmark
    set_seed(0)
    rows = work.PROMPTS * work.GROUP
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    tokenizer.pad_token = "<|endoftext|>"

    def policy() -> Any:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        return model

    def scorer(path: str) -> Any:
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32)
        model.config.pad_token_id = tokenizer.pad_token_id
        return model

    config = PPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
        per_device_train_batch_size=rows, gradient_accumulation_steps=1, num_mini_batches=1, num_ppo_epochs=1,
        total_episodes=rows * 10_000, response_length=work.NEW, temperature=1.0, kl_coef=0.02, learning_rate=1e-6,
        local_rollout_forward_batch_size=rows, num_sample_generations=0, logging_steps=1000, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=0,
    )  # fmt: skip
    chats = [[{"role": "user", "content": question}] for question in work.questions(work.PROMPTS)]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    data = Dataset.from_dict({"input_ids": ids * work.GROUP * 16})
    phases = work.Phases()
    trainer = PPOTrainer(
        args=config, processing_class=tokenizer, model=policy(), ref_model=policy(),
        reward_model=scorer(options.reward_model), value_model=scorer(options.model), train_dataset=data,
        eval_dataset=data.select(range(8)), callbacks=[phases.callback(lambda _: {"loss": None})],
    )  # fmt: skip
    phases.wrap(trainer.policy_model, "generate", "rollout")
    phases.wrap(ppo_trainer, "forward", lambda: "forward" if torch.is_grad_enabled() else "score")
    phases.wrap(ppo_trainer, "get_reward", "score")
    phases.wrap(trainer.accelerator, "backward", "backward")
    with contextlib.suppress(work.Stop):
        trainer.train()


if __name__ == "__main__":
    main()
