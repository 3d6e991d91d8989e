"""Local generation compared with other engines, in tokens per CPU second.

    python -m bench.generate                  a Llama of 166,000 parameters on 1,000 different prompts, against
                                              transformers' `generate`
    python -m bench.generate MODEL            a model folder on 64 requests with a common prefix, against transformers'
                                              `generate`, its continuous batching, llama.cpp (`--gguf FILE`; needs the
                                              package xllamacpp) and another version of this package (`--before SRC`)
    python -m bench.generate MODEL --serve    the model server at 1, 16 and 64 streams against `transformers serve`

The MODEL `random-qwen2` is created on demand: the shape of Qwen2 0.5B with random weights. All engines decode greedily
with one thread, each in a separate process, 24 tokens per answer, from the same token ids.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measure import best_cpu, row

_NUM_PROMPTS = 1000
_NUM_REQUESTS, _NUM_TOKENS = 64, 24
_EXAMPLES = (
    ("How is the weather in Rome?", '{"tool": "weather", "arguments": {"city": "Rome"}}'),
    ("Set a timer for 5 minutes.", '{"tool": "timer", "arguments": {"minutes": 5}}'),
    ("Add 1 and 2.", '{"tool": "add", "arguments": {"a": 1, "b": 2}}'),
    ("Email Bob about the lunch.", '{"tool": "email", "arguments": {"to": "Bob", "subject": "lunch"}}'),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--engine", help="run one engine and print its figures as JSON")
    parser.add_argument("--engines", default="ours,transformers,continuous", help="which to compare")
    parser.add_argument("--dtype", default="float32", help="or several: float32,bfloat16")
    parser.add_argument("--before", help="src folder of another version")
    parser.add_argument("--gguf", help="the same model for llama.cpp")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if options.model is None:
        _compare_small()
    elif options.engine is not None:
        print(json.dumps(_ENGINES[options.engine](options.model, options.dtype)))
    elif options.serve:
        from bench.serving import compare_servers

        compare_servers(options.model)
    else:
        _compare_engines(options)


# A small model


def _compare_small() -> None:
    import numpy as np
    import torch

    from pairwright.generate import Engine, Request, Sampling

    torch.set_num_threads(1)
    model, tokenizer = _small()
    engine = Engine(model, tokenizer)
    numbers = np.random.default_rng(0)
    prompts = [numbers.integers(3, 45, 14).tolist() for _ in range(_NUM_PROMPTS)]
    print("| what | ours | transformers | ratio | target |\n|---|---|---|---|---|")
    for what, count, num_tokens in (("8 candidates of 2 tokens", 8, 2), ("1 answer of 24 tokens", 1, 24)):

        def ours(count: int = count, num_tokens: int = num_tokens) -> None:
            asked = [Request(p, Sampling(n=count, seed=i, max_tokens=num_tokens)) for i, p in enumerate(prompts)]
            engine.generate(asked)

        def theirs(count: int = count, num_tokens: int = num_tokens) -> None:
            for start in range(0, len(prompts), 250):
                ids = torch.tensor(prompts[start : start + 250])
                model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    top_k=0,
                    num_return_sequences=count,
                    max_new_tokens=num_tokens,
                    pad_token_id=0,
                    output_logits=True,
                    return_dict_in_generate=True,
                )

        mine, peer = best_cpu(ours, theirs, rounds=3)
        print(row(f"{_NUM_PROMPTS:,} prompts, {what}", mine, peer, "CPU s", "–"))


def _small() -> tuple[Any, Any]:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", *(f"t{number}" for number in range(42))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=45, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=64, initializer_range=0.15, eos_token_id=2, pad_token_id=0, bos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


# A model of real size


def _compare_engines(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model == "random-qwen2":
            model = _make_qwen2(Path(folder))
        names, dtypes = options.engines.split(","), options.dtype.split(",")
        runs: list[tuple[str, str, str | None]] = [(name, dtype, None) for dtype in dtypes for name in names]
        if options.before:
            runs += [("ours", dtype, options.before) for dtype in dtypes]
        if options.gguf:
            runs += [("llamacpp", options.gguf, None), ("llamacpp-one", options.gguf, None)]
        print("| engine | dtype | tokens a CPU s | peak MB | texts |\n|---|---|---|---|---|")
        for engine, dtype, source in runs:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            if source:
                environment["PYTHONPATH"] = source
            words = ["-m", "bench.generate", model, "--engine", engine, "--dtype", dtype]
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
            if done.returncode:
                print(f"| {engine} | {dtype} | failed: {done.stderr.strip().splitlines()[-1][:100]} | | |", flush=True)
                continue
            figures = json.loads(done.stdout.splitlines()[-1])
            name = engine + (" before" if source else "")
            print(
                f"| {name} | {Path(dtype).name} | {figures['tokens'] / figures['cpu']:.1f} | {figures['peak_mb']} "
                f"| {figures['texts']} |",
                flush=True,
            )


def _make_qwen2(folder: Path) -> str:
    """Write a model with random weights in the shape of Qwen2.5-0.5B and a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Return 64 prompts with the same first four turns."""
    tokens = []
    for number in range(_NUM_REQUESTS):
        messages = [{"role": "system", "content": "Reply with one tool call as JSON."}]
        for question, answer in _EXAMPLES:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": f"Please set the timer to {2 * number + 1} minutes."})
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            text = "".join(message["content"][:40] for message in messages)
        tokens.append(tokenizer.encode(text, add_special_tokens=False))
    return tokens


def _figures(cpu: float, answers: list[list[int]]) -> dict[str, Any]:
    import hashlib

    return {
        "cpu": cpu,
        "tokens": sum(map(len, answers)),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "texts": hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:8],
    }


def _run_ours(model: str, dtype: str) -> dict[str, Any]:
    import torch

    from pairwright.generate import Engine, Request, Sampling

    torch.set_num_threads(1)
    engine = Engine.load(model, device="cpu", dtype=dtype)
    prompts = make_prompts(engine.tokenizer)
    engine.generate([Request(prompts[0][:5], Sampling(max_tokens=2))])
    start = time.process_time()
    results = engine.generate([Request(ids, Sampling(temperature=0, max_tokens=_NUM_TOKENS)) for ids in prompts])
    return _figures(time.process_time() - start, [result.choices[0].tokens.tolist() for result in results])


def _load(model: str, dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype)
    ).eval(), AutoTokenizer.from_pretrained(model)


def _run_transformers(model: str, dtype: str) -> dict[str, Any]:
    import torch

    loaded, tokenizer = _load(model, dtype)
    prompts = make_prompts(tokenizer)
    width, pad = max(map(len, prompts)), 0
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    start = time.process_time()
    output = loaded.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=_NUM_TOKENS, pad_token_id=pad
    )
    cpu = time.process_time() - start
    return _figures(cpu, [_until_stop(answer, loaded) for answer in output[:, width:].tolist()])


def _run_continuous(model: str, dtype: str) -> dict[str, Any]:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    loaded, tokenizer = _load(model, dtype)
    prompts = make_prompts(tokenizer)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=_NUM_TOKENS, eos_token_id=loaded.generation_config.eos_token_id or -1
    )
    start = time.process_time()
    outputs = loaded.generate_batch(
        prompts,
        generation_config=settings,
        # without limits it reserves most of the memory for its cache blocks
        continuous_batching_config=ContinuousBatchingConfig(page_size=32, num_blocks=1024, max_batch_tokens=512),
        warmup=False,
    )
    cpu = time.process_time() - start
    answers = sorted(outputs.values(), key=lambda output: int(output.request_id.rsplit("_", 1)[-1]))
    return _figures(cpu, [_until_stop(list(output.generated_tokens), loaded) for output in answers])


def _run_llamacpp(model: str, gguf: str, *, num_slots: int = _NUM_REQUESTS) -> dict[str, Any]:
    """Run llama.cpp's server in this process (package xllamacpp), without HTTP, with the weight types of the file."""
    from concurrent.futures import ThreadPoolExecutor

    import xllamacpp
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = make_prompts(tokenizer)
    settings = xllamacpp.CommonParams()
    settings.model.path = gguf
    settings.n_parallel, settings.n_ctx = num_slots, num_slots * 512
    settings.n_batch, settings.n_ubatch = 2048, 512
    settings.kv_unified, settings.cont_batching, settings.warmup = True, True, False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.verbosity = -1
    server = xllamacpp.Server(settings)

    def ask(prompt: list[int]) -> tuple[str, int]:
        request = {"prompt": prompt, "max_tokens": _NUM_TOKENS, "temperature": 0.0, "cache_prompt": True}
        answer = server.handle_completions(request)
        return answer["choices"][0]["text"], int(answer["usage"]["completion_tokens"])

    start = time.process_time()
    with ThreadPoolExecutor(num_slots) as pool:
        answers = list(pool.map(ask, prompts))
    cpu = time.process_time() - start
    # the server returns text, which is encoded again to compare it with the tokens of the other engines
    figures = _figures(cpu, [tokenizer.encode(text, add_special_tokens=False) for text, _ in answers])
    return {**figures, "tokens": sum(count for _, count in answers)}


def _run_llamacpp_one(model: str, gguf: str) -> dict[str, Any]:
    """Generate sequentially: each prompt reuses the cached prefix that it shares with the previous one."""
    return _run_llamacpp(model, gguf, num_slots=1)


def _until_stop(answer: list[int], model: Any) -> list[int]:
    stop = model.generation_config.eos_token_id
    stops = set(stop) if isinstance(stop, list) else {stop}
    return next((answer[: place + 1] for place, token in enumerate(answer) if token in stops), answer)


_ENGINES = {
    "ours": _run_ours,
    "transformers": _run_transformers,
    "continuous": _run_continuous,
    "llamacpp": _run_llamacpp,
    "llamacpp-one": _run_llamacpp_one,
}

if __name__ == "__main__":
    main()
