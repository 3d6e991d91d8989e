"""Local generation against transformers' own `generate`: candidates for many states, and longer answers.

`python -m bench.generate`. A Llama of 166,000 parameters made from scratch, one thread, the same prompts on both sides,
each side with the batch size that suits it. Both draw from the same distribution; the draws themselves differ.
"""

from typing import Any

from bench.measure import best_cpu, row

_NUM_PROMPTS = 1000


def main() -> None:
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


if __name__ == "__main__":
    main()
