"""Exactness and speed of tokens/.

    python bench/tokens.py table    families x cases: exact (with the text that the template drops, if any), exact as
                                    one sequence per turn, or refused (with the reason)
    python bench/tokens.py speed    cost relative to encoding the same text only, at 2, 20 and 200 turns
    python bench/tokens.py turns    one sequence per turn against one encoding of the text, at 50, 100 and 200 turns
    python bench/tokens.py prefixes against re-rendering every prefix, at 200 turns
    python bench/tokens.py trl      against TRL's DPO tokenization of the same preference data (needs trl)
    python bench/tokens.py cores    a file of conversations on one and on two processes
    python bench/tokens.py read     cached pairs in random order, against datasets

Ratios are of CPU seconds (of wall-clock seconds for `cores`), the best of several rounds, alternating, in one run. Real
tokenizers are read from the shared folder.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tokens")]

from token_cases import CASES, assistant, call, tool, user  # noqa: E402
from token_families import FAMILIES, REAL_STOPS, SHARED, real_tokenizer, small_tokenizer  # noqa: E402

from bench.measure import best_cpu, in_child  # noqa: E402
from bench.templates import build_tokenizer  # noqa: E402
from pairwright import EID, Message, Pair  # noqa: E402
from pairwright.pairs.pair_table import pairs_to_batch, write_pairs  # noqa: E402
from pairwright.tokens import (  # noqa: E402
    ChatTokenizer,
    EncodeOptions,
    PairMessages,
    Refusal,
    encode_chat,
    encode_pairs,
    encode_turns,
)
from pairwright.tokens.encode import prepare_chat  # noqa: E402


def text(size: int, random_source: random.Random) -> str:
    """Return prose and code of about `size` words from our own source."""
    words = _words()
    start = random_source.randrange(len(words) - size)
    return " ".join(words[start : start + size]) + f" {random_source.randrange(10**6)}"


def _words(kept: list[str] = []) -> list[str]:  # noqa: B006 - read once
    if not kept:
        for path in sorted((ROOT / "src" / "pairwright").rglob("*.py")):
            kept.extend(path.read_text(encoding="utf-8").split(" "))
    return kept


def chat(turns: int, seed: int) -> list[dict[str, Any]]:
    source = random.Random(seed)
    return [m for _ in range(turns // 2) for m in (user(text(60, source)), assistant(text(60, source)))]


def agent(turns: int, seed: int) -> list[dict[str, Any]]:
    """Return a long run of calls with reasoning and their results."""
    source = random.Random(seed)
    steps = (
        (assistant(text(15, source), calls=[call(n, {"query": text(15, source)})]), tool(text(80, source), n))
        for n in range(turns // 2)
    )
    return [user(text(60, source)), *(message for step in steps for message in step)]


def table() -> None:
    rows: list[tuple[str, ChatTokenizer]] = [(f"written: {name}", small_tokenizer(name)) for name in FAMILIES]
    if SHARED.is_dir():
        rows += [(f"real: {name}", real_tokenizer(name)) for name in REAL_STOPS]
    print(f"{'family':<58} exact (drops)  per turn  refused (reason: cases)")
    total: Counter[str] = Counter()
    for name, tokenizer in rows:
        counts: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for messages, tools in CASES.values():
            try:
                report = encode_chat(
                    tokenizer, messages, tools, options=EncodeOptions(boundaries="whole", allow_dropped=True)
                ).report
                counts["exact"] += 1
                counts["drops"] += bool(report.dropped)
            except Refusal as refusal:
                try:
                    encode_turns(tokenizer, messages, tools, options=EncodeOptions(allow_dropped=True))
                    counts["per turn"] += 1
                except Refusal:
                    counts["refused"] += 1
                    reasons[refusal.reason] += 1
        total += counts
        told = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        numbers = f"{counts['exact']:>5} {counts['drops']:>7} {counts['per turn']:>9} {counts['refused']:>8}"
        print(f"{name:<58} {numbers}  {told}")
    print(
        f"{'all':<58} {total['exact']:>5} {total['drops']:>7} {total['per turn']:>9} {total['refused']:>8}  "
        f"of {total.total() - total['drops']}"
    )


def add_up_least(functions: Sequence[Callable[[Any], Any]], items: list[Any], rounds: int = 9) -> list[float]:
    """Return the CPU seconds of each function, summed over the least of each item. Single items are short, so some
    rounds are not disturbed by other processes."""
    least = [[float("inf")] * len(items) for _ in functions]
    for _ in range(rounds):
        for best, function in zip(least, functions, strict=True):
            results = []  # kept alive, as in the tokens stage
            for number, item in enumerate(items):
                start = time.process_time()
                results.append(function(item))
                best[number] = min(best[number], time.process_time() - start)
    return [*map(sum, least)]


def speed(name: str) -> None:
    """Compare ours, by default and with `verify: all`, with encoding the same text with offsets (which masks need) and
    without."""
    tokenizer = real_tokenizer(name)
    backend = tokenizer.backend
    # Llama 3.1 does not render text beside a call.
    quick, every = EncodeOptions(allow_dropped=True), EncodeOptions(allow_dropped=True, verify="all")
    for kind in (chat, agent):
        for turns in (2, 20, 200):
            chats = [kind(turns, seed) for seed in range(max(2, 400 // turns))]
            texts = [tokenizer.renderer(None).text(messages) for messages in chats]
            encode_chat(tokenizer, chats[0], options=quick)
            functions = (
                lambda item: backend.encode(item[1], add_special_tokens=False).ids,
                lambda item: backend.encode_batch_fast([item[1]], add_special_tokens=False)[0].ids,
                lambda item: encode_chat(tokenizer, item[0], options=quick),
                lambda item: encode_chat(tokenizer, item[0], options=every),
            )
            raw, fast, ours, verified = add_up_least(functions, list(zip(chats, texts, strict=True)))
            print(
                f"{name:<12} {kind.__name__:<6} {turns:>5} turns: raw {raw / len(chats) * 1e6:>9,.0f} us, ours "
                f"{ours / len(chats) * 1e6:>9,.0f}, cost {ours / raw:.2f}x, verify all {verified / raw:.2f}x, against "
                f"no offsets {ours / fast:.2f}x",
                flush=True,
            )


BY_TURN = ("Qwen-QwQ-32B", "trl-deepseek_r1_distill", "GLM-4.7-Flash", "google-gemma-4-31B-it")


def turns(name: str) -> None:
    """Compare runs of calls with templates that give one sequence per turn with one encoding of the whole text."""
    for template in BY_TURN:
        source = (SHARED.parent / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
        tokenizer = build_tokenizer(source, SHARED / name)
        # GLM gives one sequence per turn if there is no reasoning.
        for seed in (1, 2):  # a warm-up with other runs fills the caches of the template
            encode_turns(
                tokenizer,
                thoughtful(400, seed, thinks=template != "GLM-4.7-Flash"),
                options=EncodeOptions(allow_dropped=True),
            )
        for number in (50, 100, 200):
            messages = thoughtful(2 * number, 0, thinks=template != "GLM-4.7-Flash")
            whole = tokenizer.renderer(None).text(prepare_chat(tokenizer, messages, None).chat)
            sequences = encode_turns(tokenizer, messages, options=EncodeOptions(allow_dropped=True))
            raw, ours = best_cpu(
                lambda whole=whole, tokenizer=tokenizer: tokenizer.backend.encode(whole, add_special_tokens=False).ids,
                lambda messages=messages, tokenizer=tokenizer: encode_turns(
                    tokenizer, messages, options=EncodeOptions(allow_dropped=True)
                ),
            )
            tokens = sum(map(len, sequences))
            print(
                f"{template:<24} {number:>4} turns, {len(sequences):>4} sequences, {tokens:>9,} tokens: "
                f"raw {raw * 1e3:>5.0f} ms, ours {ours * 1e3:>6.0f} ms, {ours / raw:.1f}x",
                flush=True,
            )


def thoughtful(turns: int, seed: int, *, thinks: bool) -> list[dict[str, Any]]:
    """Return a long run in which all turns have reasoning, or none."""
    words = random.Random(seed + 1)
    messages = agent(turns, seed)
    if not thinks:
        return messages
    return [{**m, "reasoning_content": text(20, words)} if m["role"] == "assistant" else m for m in messages]


def by_prefixes(tokenizer: ChatTokenizer, messages: list[dict[str, Any]]) -> list[bool]:
    """Render and encode every prefix, and take the tokens that each turn adds: the usual method."""
    renderer = tokenizer.renderer(None)
    ids = tokenizer.backend.encode(renderer.text(messages), add_special_tokens=False).ids
    mask = [False] * len(ids)
    for turn, message in enumerate(messages):
        if message["role"] == "assistant":
            start, end = (
                len(tokenizer.backend.encode(rendered, add_special_tokens=False).ids)
                for rendered in (
                    renderer.text(messages[:turn], prompt=True),
                    renderer.text(messages[: turn + 1]),
                )
            )
            mask[start:end] = [True] * (end - start)
    return mask


def prefixes(name: str) -> None:
    tokenizer = real_tokenizer(name)
    messages = chat(200, 0)
    encode_chat(tokenizer, messages)
    theirs = best_cpu(lambda: by_prefixes(tokenizer, messages), rounds=1)[0]
    ours = best_cpu(lambda: encode_chat(tokenizer, messages))[0]
    print(f"{name} at 200 turns: every prefix {theirs:.3f} s CPU, ours {ours:.4f} s, ratio {theirs / ours:.0f}x")


def trl(name: str) -> None:
    """Prepare the same pairs with TRL's DPOTrainer and with ours."""
    import datasets
    import transformers
    from trl import DPOTrainer

    datasets.disable_caching()
    datasets.disable_progress_bars()
    pairs = []
    for seed in range(300):
        source = random.Random(seed)
        pairs.append(([user(text(200, source))], [assistant(text(80, source))], [assistant(text(80, source))]))
    rows = datasets.Dataset.from_list(
        [dict(zip(("prompt", "chosen", "rejected"), pair, strict=True)) for pair in pairs]
    )
    hf = transformers.AutoTokenizer.from_pretrained(SHARED / name)
    trainer, config = SimpleNamespace(_tokenizer=hf), SimpleNamespace(dataset_num_proc=None, max_length=None)
    tokenizer = real_tokenizer(name)
    list(encode_pairs(tokenizer, [PairMessages(*pairs[0])]))
    compared = [PairMessages(*pair) for pair in pairs]
    theirs, ours, single = best_cpu(
        lambda: DPOTrainer._prepare_dataset(trainer, rows, hf, config, "train"),
        lambda: list(encode_pairs(tokenizer, compared)),
        lambda: [list(encode_pairs(tokenizer, [pair])) for pair in compared],
        rounds=4,
    )
    print(
        f"{name}, 300 pairs: TRL {theirs:.3f} s CPU, ours {ours:.3f} s, ratio {theirs / ours:.1f}x; "
        f"one pair at a time {single:.3f} s, ratio {theirs / single:.1f}x"
    )


def _encode_part(arguments: tuple[str, list[int]]) -> int:
    name, seeds = arguments
    tokenizer = real_tokenizer(name)
    return sum(len(encode_chat(tokenizer, agent(40, seed))) for seed in seeds)


def cores(name: str) -> None:
    seeds = list(range(600))
    _encode_part((name, seeds[:2]))
    start = time.perf_counter()
    tokens = _encode_part((name, seeds))
    one = time.perf_counter() - start
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_encode_part, [(name, seeds[:2])] * 2))
        start = time.perf_counter()
        list(
            pool.map(_encode_part, [(name, seeds[0::4]), (name, seeds[1::4]), (name, seeds[2::4]), (name, seeds[3::4])])
        )
        two = time.perf_counter() - start
    print(f"{name}: {tokens:,} tokens, one process {one:.2f} s, two {two:.2f} s, {one / two:.2f}x")


def read(name: str) -> None:
    """Read cached pairs in random order, from our cache and from `datasets`, each in a separate process."""
    from pairwright.config import TokensConfig
    from pairwright.tokens.stage.stage import encode_source

    with tempfile.TemporaryDirectory() as folder:
        pairs = [
            Pair(
                id=f"{seed:032x}", prompt=[Message("user", text(200, random.Random(seed)))],
                chosen=[Message("assistant", text(300, random.Random(seed)))],
                rejected=[Message("assistant", text(250, random.Random(seed + 1)))], chosen_reward=1.0,
                rejected_reward=0.0, chosen_eid=EID(), rejected_eid=EID(), gap=1.0, strategy="all",
            )
            for seed in range(4000)
        ]  # fmt: skip
        write_pairs(Path(folder) / "pairs", [pairs_to_batch(pairs)])
        encode_source(Path(folder) / "pairs", Path(folder) / "tokens", TokensConfig(tokenizer=str(SHARED / name)))
        in_child(READ_OURS, folder)  # the first run creates the memory-mapped file
        ours, theirs = in_child(READ_OURS, folder), in_child(READ_THEIRS, folder)
    for who, found in (("ours", ours), ("datasets", theirs)):
        print(f"{who}: {found['microseconds']:.0f} us CPU a pair, peak memory {found['megabytes']:.0f} MB")
    print(f"ratio {theirs['microseconds'] / ours['microseconds']:.1f}x")


_TIMED = """
import json, random, sys, time
order = list(range(4000)); random.Random(0).shuffle(order)
def peak(): return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
def timed(take):
    start = time.process_time()
    for number in order: take(number)
    used = (time.process_time() - start) / len(order) * 1e6
    print(json.dumps({"microseconds": used, "megabytes": peak()}))
"""
READ_OURS = (
    _TIMED
    + """
from pathlib import Path
from pairwright.tokens.stage.cache import CachedPairs
pairs = CachedPairs(Path(sys.argv[1]) / "tokens")
timed(lambda number: int(pairs[number].chosen.ids[-1]) + int(pairs[number].rejected.mask[-1]))
"""
)
READ_THEIRS = (
    _TIMED
    + """
import datasets, glob
datasets.disable_progress_bars()
parts = sorted(glob.glob(sys.argv[1] + "/tokens/sequences-*.parquet"))
rows = datasets.Dataset.from_parquet(parts, cache_dir=sys.argv[1] + "/hf").with_format("numpy")
rows = rows.select_columns(["ids", "mask", "message_index", "paint", "prompt_length", "report"])
def take(number):
    left, right = rows[2 * number], rows[2 * number + 1]
    return int(left["ids"][-1]) + int(right["mask"][-1])
timed(take)
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"speed": speed, "turns": turns, "prefixes": prefixes, "trl": trl, "cores": cores, "read": read}
    parser.add_argument("what", choices=["table", *commands])
    parser.add_argument("--tokenizer", default="qwen2_5", help="a folder of the shared tokenizers")
    options = parser.parse_args()
    if options.what == "table":
        table()
    else:
        commands[options.what](options.tokenizer)


if __name__ == "__main__":
    main()
