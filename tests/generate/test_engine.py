"""The engine against transformers' own forward pass and generate, and against itself in other batches."""

import json

import numpy as np
import pytest
import torch
from transformers import BloomConfig, Gemma2Config, GPT2Config, MistralConfig, Qwen2Config, Qwen3Config

from generate.test_batching import count_steps
from generate.tiny_models import byte_tokenizer, llama, model_of, save_model
from pairwright.generate import Engine, GenerateError, Request, Sampling
from pairwright.generate.draw_tokens import weigh_tokens
from pairwright.generate.scheduler import Ticket


@pytest.fixture(scope="module")
def engine() -> Engine:
    tokenizer = byte_tokenizer()
    return Engine(llama(tokenizer), tokenizer)


def prompts(engine: Engine, count: int, *, seed: int = 0, longest: int = 30) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(10, engine.vocabulary, draw.integers(1, longest)).tolist() for _ in range(count)]


def tokens(results) -> list[list[list[int]]]:
    return [[choice.tokens.tolist() for choice in result.choices] for result in results]


def greedy_of_transformers(engine: Engine, prompt: list[int], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = engine.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens,
        pad_token_id=engine.tokenizer.pad_token_id,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def forced_logprobs(engine: Engine, prompt: list[int], completion: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = engine.model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    places = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return logits[places, torch.tensor(completion)].numpy()


def test_greedy_answers_are_those_of_transformers_whatever_else_is_in_the_batch(engine):
    asked = prompts(engine, 12)
    results = engine.generate([Request(prompt, Sampling(temperature=0, max_tokens=9)) for prompt in asked])
    assert tokens(results) == [[greedy_of_transformers(engine, prompt, 9)] for prompt in asked]


@pytest.mark.parametrize("kind", ["sliding", "mistral", "qwen3", "gpt2", "gemma2", "bloom"])
def test_other_architectures_agree_with_transformers_too(kind):
    tokenizer = byte_tokenizer()
    size = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    small = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = {
        "sliding": lambda: Qwen2Config(**size, **small, use_sliding_window=True, sliding_window=8, max_window_layers=1, initializer_range=0.2),
        "gpt2": lambda: GPT2Config(**size, n_embd=32, n_layer=2, n_head=2, n_positions=128, bos_token_id=None, initializer_range=0.2),
        "mistral": lambda: MistralConfig(**size, **small, sliding_window=12, bos_token_id=None, initializer_range=0.2),
        "qwen3": lambda: Qwen3Config(**size, **small, head_dim=16, initializer_range=0.2),
        "bloom": lambda: BloomConfig(**size, hidden_size=32, n_layer=2, n_head=2, bos_token_id=None, initializer_range=0.2),
        "gemma2": lambda: Gemma2Config(**size, **small, head_dim=16, sliding_window=8, bos_token_id=None, initializer_range=0.2),
    }[kind]()  # fmt: skip
    engine = Engine(model_of(config), tokenizer)
    start = prompts(engine, 1, seed=3)[0] * 40
    asked = [*prompts(engine, 4), *(start[:50] + prompt for prompt in prompts(engine, 4, seed=2))]
    results = engine.generate([Request(prompt, Sampling(temperature=0, max_tokens=12)) for prompt in asked])
    reason = {"gemma2": "its attention has softcap", "bloom": "transformers gives it no choice of attention"}.get(kind)
    assert engine.fallback_reason == reason
    assert tokens(results) == [[greedy_of_transformers(engine, prompt, 12)] for prompt in asked]
    drawn = engine.generate([Request(prompt, Sampling(n=4, seed=5, max_tokens=12)) for prompt in asked])
    for prompt, result in zip(asked, drawn, strict=True):
        for choice in result.choices:
            np.testing.assert_allclose(
                choice.logprobs, forced_logprobs(engine, prompt, choice.tokens.tolist()), atol=2e-4
            )


def test_a_draw_depends_on_its_seed_alone(engine):
    requests = [Request(p, Sampling(n=5, seed=3 + i, max_tokens=6)) for i, p in enumerate(prompts(engine, 20))]
    together = tokens(engine.generate(requests))
    assert together == [tokens(engine.generate([request]))[0] for request in requests]
    assert together == tokens(engine.generate(requests[::-1]))[::-1]
    assert len({str(choices) for choices in together}) == 20


def test_a_cache_that_may_hold_little_gives_the_same(engine):
    requests = [Request(p, Sampling(n=9, seed=i, max_tokens=20)) for i, p in enumerate(prompts(engine, 4))]
    tight = Engine(engine.model, engine.tokenizer, max_batch_tokens=40, max_cache_tokens=60)
    assert tokens(tight.generate(requests)) == tokens(engine.generate(requests))


def test_logprobs_are_the_models_own(engine):
    requests = [
        Request(p, Sampling(n=6, seed=i, temperature=0.7, top_p=0.9, max_tokens=8))
        for i, p in enumerate(prompts(engine, 5))
    ]
    for request, result in zip(requests, engine.generate(requests), strict=True):
        for choice in result.choices:
            forced = forced_logprobs(engine, list(request.prompt), choice.tokens.tolist())
            np.testing.assert_allclose(choice.logprobs, forced, atol=1e-4)


def test_equal_prompts_and_equal_beginnings_are_computed_once(engine, monkeypatch):
    sizes = count_steps(engine, monkeypatch)
    prompt = prompts(engine, 1)[0]
    results = engine.generate([Request(prompt, Sampling(n=50, seed=seed, top_k=2, max_tokens=2)) for seed in range(4)])
    firsts = {choice.tokens[0] for result in results for choice in result.choices}
    assert len(firsts) == 2
    assert sizes == [len(prompt), 2]


def test_a_common_beginning_is_computed_once_also_for_later_requests(engine, monkeypatch):
    start, *ends = prompts(engine, 20, seed=9, longest=20)
    start = (start * 100)[:90]
    asked = [Request(start + end, Sampling(temperature=0, max_tokens=3)) for end in ends]
    fresh = Engine(engine.model, engine.tokenizer)
    alone = [tokens(Engine(engine.model, engine.tokenizer).generate([request])) for request in asked]
    fresh.generate([Request([11, 12], Sampling(max_tokens=1))])  # the trial of packed attention is over
    sizes = count_steps(engine, monkeypatch)
    assert [[result] for result in tokens(fresh.generate(asked))] == alone
    unshared = sum(len(end) for end in ends)
    assert sum(sizes) <= 90 + unshared + 3 * len(asked)
    sizes.clear()
    fresh.generate([Request([*start, 7, 8], Sampling(temperature=0, max_tokens=1))])
    assert sizes == [2]


def test_choices_of_a_prompt_share_its_keys_and_values(engine):
    fresh = Engine(engine.model, engine.tokenizer)
    prompt = (prompts(engine, 1, seed=5)[0] * 200)[:200]
    scheduler = fresh.open_scheduler()
    scheduler.add(Ticket(Request(prompt, Sampling(n=40, seed=1, max_tokens=20))))
    while not scheduler.is_idle:
        scheduler.step()
        assert fresh._runner.budget.used < 200 + 40 * 64, "40 copies of the prompt would be 8,000 tokens"


def test_top_k_and_top_p_without_a_sort_are_those_of_a_sort():
    draw = np.random.default_rng(0)
    logits = torch.from_numpy(draw.normal(size=(12, 3000)).round(1) * 3)  # rounded: many ties
    logits[:4] *= 0.01  # flat: the nucleus is most of the vocabulary
    temperature, top_p = torch.full((12,), 0.7), torch.tensor([0.3, 0.9, 0.999, 1.0] * 3, dtype=torch.float64)
    top_k = torch.tensor([0, 1, 50, 2999, 0, 7] * 2)
    got = weigh_tokens(logits, temperature, top_p, top_k)
    values, ids = (logits / 0.7).double().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(3000)[None, :]
    values = values.masked_fill(rank >= torch.where(top_k > 0, top_k, 3000)[:, None], -torch.inf)
    probs = values.softmax(-1)
    probs = probs.masked_fill((probs.cumsum(-1) - probs >= top_p[:, None]) & (rank > 0), 0)
    expected = torch.zeros_like(probs).scatter(-1, ids, probs / probs.sum(-1, keepdim=True))
    assert (got / got.sum(-1, keepdim=True) - expected).abs().max() < 1e-6


def test_draws_follow_the_probabilities(engine):
    prompt = prompts(engine, 1)[0]
    (result,) = engine.generate([Request(prompt, Sampling(n=4000, seed=1, temperature=0.8, max_tokens=1))])
    with torch.inference_mode():
        probs = (engine.model(torch.tensor([prompt])).logits[0, -1] / 0.8).softmax(-1).numpy()
    counts = np.bincount([choice.tokens[0] for choice in result.choices], minlength=len(probs))
    assert np.abs(counts / 4000 - probs).max() < 0.03
    assert counts[probs < 1e-9].sum() == 0


def test_top_k_and_top_p_leave_only_the_likeliest(engine):
    prompt = prompts(engine, 1)[0]
    with torch.inference_mode():
        probs = engine.model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
    best = np.argsort(-probs, kind="stable")
    nucleus = set(best[: int(np.searchsorted(np.cumsum(probs[best]), 0.5)) + 1].tolist())
    by_k, by_p = engine.generate(
        [
            Request(prompt, Sampling(n=500, seed=1, top_k=3, max_tokens=1)),
            Request(prompt, Sampling(n=2000, seed=1, top_p=0.5, max_tokens=1)),
        ]
    )
    assert {choice.tokens[0] for choice in by_k.choices} == set(best[:3].tolist())
    assert {choice.tokens[0] for choice in by_p.choices} == nucleus


def test_top_logprobs_are_the_likeliest_tokens_of_each_position(engine):
    prompt = prompts(engine, 1)[0]
    (result,) = engine.generate([Request(prompt, Sampling(temperature=0, max_tokens=3, top_logprobs=4))])
    (choice,) = result.choices
    assert [len(top) for top in choice.top_logprobs] == [4, 4, 4]
    for token, logprob, top in zip(choice.tokens, choice.logprobs, choice.top_logprobs, strict=True):
        assert top[0] == (token, pytest.approx(float(logprob)))
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)


def test_an_answer_ends_at_the_stop_token_at_the_limit_or_at_the_context():
    tokenizer = byte_tokenizer()
    engine = Engine(llama(tokenizer, context=64), tokenizer)
    asked = prompts(engine, 40, longest=6)
    results = engine.generate([Request(p, Sampling(n=3, seed=i)) for i, p in enumerate(asked)])
    ends = {"stop": 0, "length": 0}
    for prompt, result in zip(asked, results, strict=True):
        for choice in result.choices:
            ends[choice.finish_reason] += 1
            if choice.finish_reason == "stop":
                assert choice.tokens[-1] == engine.tokenizer.eos_token_id == choice.stop
                assert engine.tokenizer.eos_token_id not in choice.tokens[:-1]
                assert choice.text == engine.tokenizer.decode(choice.tokens[:-1], skip_special_tokens=True)
            else:
                assert len(prompt) + len(choice.tokens) == 64
    assert min(ends.values()) > 10


def test_a_stop_text_ends_the_answer_and_is_not_in_it(engine):
    asked = prompts(engine, 10)
    plain = engine.generate([Request(p, Sampling(temperature=0, max_tokens=20)) for p in asked])
    for prompt, result in zip(asked, plain, strict=True):
        text = result.choices[0].text
        if len(text) < 6 or "�" in text:
            continue
        stop = text[3:5]
        (stopped,) = engine.generate([Request(prompt, Sampling(temperature=0, max_tokens=20, stop=("zzz", stop)))])
        assert stopped.choices[0].text == text[: text.index(stop)]
        assert (stopped.choices[0].finish_reason, stopped.choices[0].stop) == ("stop", stop)
        assert stopped.choices[0].tokens.tolist() == result.choices[0].tokens[: len(stopped.choices[0].tokens)].tolist()


def test_pieces_add_up_to_the_results(engine):
    asked = [Request(p, Sampling(n=3, seed=i, max_tokens=15)) for i, p in enumerate(prompts(engine, 6))]
    pieces = []
    results = engine.generate(asked, on_piece=pieces.append)
    for number, result in enumerate(results):
        for choice in result.choices:
            mine = [piece for piece in pieces if (piece.request, piece.choice) == (number, choice.index)]
            assert [piece.token for piece in mine] == choice.tokens.tolist()
            assert "".join(piece.text for piece in mine) == choice.text
            assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
    assert [r.choices[0].text for r in results] == [r.choices[0].text for r in engine.generate(asked)]


def test_a_cancelled_request_ends_and_the_others_go_on(engine):
    asked = [Request(p, Sampling(temperature=0, max_tokens=10)) for p in prompts(engine, 2, seed=4)]
    scheduler = engine.open_scheduler()
    tickets = [Ticket(request) for request in asked]
    for ticket in tickets:
        scheduler.add(ticket)
    while not scheduler.is_idle:
        tickets[1].is_cancelled = len(tickets[0].choices[0].tokens) >= 2
        scheduler.step()
    results = [ticket.result for ticket in tickets]
    whole = engine.generate(asked)
    assert results[1].choices[0].finish_reason == "cancelled"
    assert len(results[1].choices[0].tokens) < 10
    assert tokens(results[:1]) == tokens(whole[:1])


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [([], "empty prompt"), ([5] * 256, "256 tokens, the context of model has 256"), ([5, 100_000], "token ids"), ([-1], "token ids")],
)  # fmt: skip
def test_a_request_that_cannot_be_answered_says_why(engine, prompt, reason):
    with pytest.raises(GenerateError, match=reason):
        engine.generate([Request(prompt)])


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"top_p": 0}, {"n": 0}, {"max_tokens": 0}, {"seed": -1}, {"stop": ("",)}, {"temperature": float("nan")}]
)  # fmt: skip
def test_settings_are_checked(options):
    with pytest.raises(GenerateError, match=next(iter(options))):
        Sampling(**options)


def test_a_folder_and_an_adapter_folder_load(tmp_path):
    from peft import LoraConfig, get_peft_model

    save_model(tmp_path / "base")
    base = Engine.load(tmp_path / "base", device="cpu")
    assert (base.name, base.context) == ("base", 256)
    wrapped = get_peft_model(
        Engine.load(tmp_path / "base").model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    wrapped.save_pretrained(tmp_path / "adapter")
    described = tmp_path / "adapter" / "adapter_config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | {"base_model_name_or_path": "../base"}))
    adapted = Engine.load(tmp_path / "adapter")
    requests = [Request(prompt, Sampling(max_tokens=6)) for prompt in prompts(base, 4)]
    with torch.inference_mode():
        expected = wrapped(torch.tensor([requests[0].prompt])).logits[0, -1].log_softmax(-1)
    got = adapted.generate(requests)[0].choices[0]
    assert float(got.logprobs[0]) == pytest.approx(float(expected[got.tokens[0]]), abs=1e-4)
    assert tokens(adapted.generate(requests)) != tokens(base.generate(requests))


def test_what_is_no_model_is_refused_with_the_reason(tmp_path):
    with pytest.raises(GenerateError, match="no such folder"):
        Engine.load(tmp_path / "none")
    with pytest.raises(GenerateError, match=r"neither config\.json nor"):
        Engine.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(GenerateError, match="cannot be loaded"):
        Engine.load(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/model"}')
    with pytest.raises(GenerateError, match="is not a folder here"):
        Engine.load(tmp_path)
