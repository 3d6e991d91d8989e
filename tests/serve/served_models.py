"""A model server in this process, on a free port of the loopback interface, and models that say what a test needs."""

import asyncio
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import torch
import uvicorn

from generate.tiny_models import byte_tokenizer, llama
from pairwright.generate import Engine
from pairwright.serve.model_app import ModelServer, model_app

# Hermes: what Qwen2.5 and Qwen3 write, in a few lines.
HERMES_TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }} Answer with <tool_call></tool_call>.<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Served:
    """Where a server is, and the server itself."""

    def __init__(self, server: ModelServer, port: int) -> None:
        self.server, self.port = server, port
        self.url = f"http://127.0.0.1:{port}"


@contextmanager
def served(engine: Engine, **options):
    server = ModelServer(engine=engine, names=("tiny",), **options)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(256)
    running = uvicorn.Server(uvicorn.Config(model_app(server), log_level="warning"))
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listening])), daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive(), "the server ended before it began"
        thread.join(0.01)
    try:
        yield Served(server, listening.getsockname()[1])
    finally:
        running.should_exit = True
        thread.join()


def tiny_engine(*, context: int = 256, template: str | None = None) -> Engine:
    tokenizer = byte_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return Engine(llama(tokenizer, context=context), tokenizer, name="tiny")


def taught_engine(says: dict[str, str], *, template: str, tools=(), context: int = 1024, special=()) -> Engine:
    """A model that has learnt by heart what to answer to each question; `special` are more special tokens."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": list(special)})
    tokenizer.chat_template = template
    model = llama(tokenizer, context=context)
    rows = []
    for question, answer in says.items():
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        start = tokenizer.encode(prompt, add_special_tokens=False)
        rows.append((start, [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(300):
        losses = []
        for start, answer in rows:
            ids = torch.tensor([start + answer])
            losses.append(model(input_ids=ids, labels=torch.tensor([[-100] * len(start) + answer])).loss)
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    return Engine(model.eval(), tokenizer, name="tiny")


def saved(folder: Path, engine: Engine) -> Path:
    engine.model.save_pretrained(folder)
    engine.tokenizer.save_pretrained(folder)
    return folder
