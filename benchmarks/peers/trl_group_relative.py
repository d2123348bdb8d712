"""A worker of vs_trl.py: TRL's GRPOTrainer, or a class derived from it with a gradient penalty (`--fork`).

Runs in an environment of its own, see vs_trl.py.
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
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

warnings.filterwarnings("ignore")


def rewards(completions: list[Any], **_: Any) -> list[float]:
    """The work's own score of each completion's text."""
    return [work.score(c[0]["content"] if isinstance(c, list) else c) for c in completions]


def frozen_inputs(tokenizer: Any, chats: list[Any]) -> dict[str, Any]:
    """A batch as the trainer makes it, with the work's frozen completions and advantages."""
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    prompts = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    completion = torch.tensor(work.frozen_tokens())
    return {
        "prompt_ids": prompts.input_ids.repeat_interleave(work.GROUP, 0),
        "prompt_mask": prompts.attention_mask.repeat_interleave(work.GROUP, 0),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "advantages": torch.tensor(work.frozen_advantages()),
        "num_items_in_batch": torch.tensor(completion.numel()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", default="full")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fork", help="folder with the package of the fork")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sys.stdout = sys.stderr  # the trainer prints; standard output is for the benchmark
    rows = work.PROMPTS * work.GROUP
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    kind, trainer_class, extra = GRPOConfig, GRPOTrainer, {}
    if options.fork:
        sys.path.insert(0, options.fork)
        from trl_gradientregularization import GRPOGradRegConfig as kind  # type: ignore[no-redef]
        from trl_gradientregularization import GRPOTrainerGradreg as trainer_class  # type: ignore[no-redef]

        extra = {"grad_reg_strength": 1e-2, "grad_reg_eps": 1e-3, "grad_reg_g1_clip": 10.0, "grad_reg_g2_clip": 10.0}
    config = kind(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
        per_device_train_batch_size=rows, gradient_accumulation_steps=1, steps_per_generation=1,
        num_generations=work.GROUP, max_completion_length=work.NEW, num_iterations=1, shuffle_dataset=False,
        temperature=1.0, top_k=0, top_p=1.0, generation_kwargs={"min_new_tokens": work.NEW}, beta=0.0,
        learning_rate=1e-6, lr_scheduler_type="constant", max_steps=10_000, logging_steps=1000, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=0, **extra,
    )  # fmt: skip
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    chats = [[{"role": "user", "content": question}] for question in work.questions(work.PROMPTS)]
    phases = work.Phases()
    trainer: Any = None

    def check(file: str) -> dict[str, Any]:
        inputs = frozen_inputs(tokenizer, chats)
        trainer.current_gradient_accumulation_steps = 1
        model = trainer.model.train()
        loss = trainer.compute_loss(model, inputs)
        loss.backward()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        tensors = {f"grad.{name}": p.grad.detach().clone() for name, p in trained.items() if p.grad is not None}
        tensors |= {f"weight.{name}": p.detach().clone() for name, p in trained.items() if "lora_" in name}
        prompt = {"prompt_ids": inputs["prompt_ids"], "prompt_mask": inputs["prompt_mask"]}
        save_file(tensors | {name: tensor.clone() for name, tensor in prompt.items()}, file)
        model.zero_grad(set_to_none=True)
        return {"loss": float(loss.detach())}

    trainer = trainer_class(
        model=model, reward_funcs=rewards, args=config, train_dataset=Dataset.from_dict({"prompt": chats * 64}),
        processing_class=tokenizer, peft_config=lora if options.train == "lora" else None,
        callbacks=[phases.callback(check)],
    )  # fmt: skip
    phases.wrap(trainer.accelerator.unwrap_model(trainer.model), "generate", "rollout")
    score = "_get_per_token_logps_and_entropies"
    phases.wrap(trainer, score, lambda: "forward" if torch.is_grad_enabled() else "score")
    phases.wrap(trainer.accelerator, "backward", "backward")
    with contextlib.suppress(work.Stop):
        trainer.train()


if __name__ == "__main__":
    main()
