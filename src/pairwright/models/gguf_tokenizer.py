"""Convert between a tokenizer and the metadata of a GGUF file.

A GGUF file has only the name of its splitting rule (`tokenizer.ggml.pre`). Reading refuses names that are not in the
table below; writing refuses tokenizers that split text differently from all known rules. A wrong rule would silently
give wrong ids.
"""

import json
import re
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pairwright.records.messages import Json
from pairwright.tokens.refusals import TokensError
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.tokens.tokenizer_files import list_merges

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # tokenizer.ggml.token_type

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS % "{1,3}", _WORDS % ""
# Name of the rule in the file: the rule. `digits` splits numbers first and the rest as GPT-2 does.
_RULES = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "smollm": "digits",
    "gpt-2": "gpt2",
}
# Texts that a rule must split like the original, and that `model export --prove` encodes with llama.cpp: digits,
# blanks, Unicode (composed: llama.cpp does not normalise), code.
PROBE_TEXTS = (
    "Hello world's 12345 + 3.14159, 1st of 2026",
    "  two  blanks   three\n\n\n\ttabs\t\r\n end  ",
    "naïve café — “quotes” don't SHOUT'LL ½ Ⅷ ²",
    "日本語のテキスト, русский текст, العربية, हिन्दी, 한국어",
    "🙂🙂 👩‍👩‍👧 é€𝕏",
    "def f(x):\n    return [x**2 for x in range(10)]  # ok\n\nif __name__ == '__main__':\n\tprint(f\"{f(3)!r}\")",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 10}}',
    "camelCase snake_case CONSTANT-kebab http://example.com/a?b=1&c=%20",
)


def build_tokenizer(fields: Json, where: str) -> Tokenizer:
    """Build the tokenizer from a file's metadata. `where`: the file's name, for errors."""
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level(fields, where)
    elif kind == "llama":
        backend = _sentencepiece(fields, where)
    else:
        raise TokensError(
            f"{where}: a vocabulary of the kind {kind!r}, expected gpt2 or llama: take the tokenizer of the original "
            "model with --tokenizer FOLDER"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    backend.add_tokens(
        [
            AddedToken(token, special=type_ in (_CONTROL, _UNKNOWN), normalized=False)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (_CONTROL, _USER_DEFINED, _UNKNOWN)
        ]
    )
    for number, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if type_ != _UNUSED and backend.token_to_id(token) != number:
            raise TokensError(f"{where}: token {number}, {token!r}, is in the vocabulary twice")
    if _adds_bos(fields):
        bos = tokens[fields["tokenizer.ggml.bos_token_id"]]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return backend


def tokenizer_settings(fields: Json) -> Json:
    """Return tokenizer_config.json: special tokens by role, and the context length."""
    tokens = fields["tokenizer.ggml.tokens"]
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {role: fields.get(f"tokenizer.ggml.{key}_token_id") for role, key in roles.items()}
    settings: Json = {role: tokens[number] for role, number in ids.items() if number is not None}
    return settings | {
        "add_bos_token": _adds_bos(fields),
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields[f"{fields['general.architecture']}.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def stop_ids(fields: Json) -> list[int]:
    """Return the tokens that end an answer: end of text, end of turn, end of message."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return list(dict.fromkeys(fields[key] for key in keys if fields.get(key) is not None))


def _adds_bos(fields: Json) -> bool:
    """Return whether a text begins with BOS; the default depends on the family."""
    is_family = (
        fields["tokenizer.ggml.model"] == "llama" or _RULES.get(str(fields.get("tokenizer.ggml.pre"))) == _LLAMA3
    )
    return bool(fields.get("tokenizer.ggml.add_bos_token", is_family))


def _byte_level(fields: Json, where: str) -> Tokenizer:
    name = fields.get("tokenizer.ggml.pre")
    if name not in _RULES:
        raise TokensError(
            f"{where}: splits text by the rule {name!r}; supported: {', '.join(_RULES)}: take the tokenizer of the "
            "original model with --tokenizer FOLDER"
        )
    rule = _RULES[name]
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    # Added tokens are also in the vocabulary, so that they keep their ids; BPE itself cannot produce them.
    vocabulary = {
        token: number for number, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != _UNUSED
    }
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    # Llama 3 encodes a word that equals a token as that token, without merging.
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rule == _LLAMA3))
    backend.pre_tokenizer = _splitter(rule)
    if rule == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _splitter(rule: str) -> Any:
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in ("gpt2", "digits"))
    first: list[Any] = []
    if rule == "digits":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    elif rule != "gpt2":
        first = [pre_tokenizers.Split(Regex(rule), "isolated")]
    return pre_tokenizers.Sequence([*first, levels])


def _sentencepiece(fields: Json, where: str) -> Tokenizer:
    """Build a SentencePiece tokenizer: merges are ordered by the score of their result."""
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    scores = fields.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise TokensError(f"{where}: expected a score for each of {len(tokens):,} tokens (tokenizer.ggml.scores)")
    by_score = sorted(range(len(tokens)), key=lambda number: (-scores[number], number))
    ranks = {tokens[number]: rank for rank, number in enumerate(by_score) if types[number] == _NORMAL}
    vocabulary = {token: number for number, token in enumerate(tokens) if types[number] != _UNUSED}
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
    backend = Tokenizer(
        models.BPE(vocabulary, list_merges(ranks, ranks), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "▁")
    starts_with_space = fields.get("tokenizer.ggml.add_space_prefix", True)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace] if starts_with_space else [replace])
    strip = [decoders.Strip(" ", 1, 0)] if starts_with_space else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def tokenizer_fields(tokenizer: ChatTokenizer, where: str, *, num_embeddings: int) -> Json:
    """Return the metadata of a tokenizer, from which `build_tokenizer` gives the same ids.

    where: the folder's name, for errors.
    num_embeddings: rows of the model's embedding; ids that are not tokens become unused ones.
    """
    backend = tokenizer.backend
    content = json.loads(backend.to_str())
    if content["model"]["type"] != "BPE":
        raise TokensError(f"{where}: a vocabulary of the kind {content['model']['type']}: only BPE is exported")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    size = max(backend.get_vocab().values()) + 1
    if size > num_embeddings:
        raise TokensError(f"{where}: {size:,} tokens, but the model has embeddings for {num_embeddings:,}")
    found = [backend.id_to_token(number) for number in range(size)]
    tokens = [f"[PAD{number}]" if token is None else token for number, token in enumerate(found)]
    is_bytes = isinstance(backend.decoder, decoders.ByteLevel)
    unknown = content["model"].get("unk_token")
    added = {
        number: _CONTROL if token.special else _USER_DEFINED
        for number, token in backend.get_added_tokens_decoder().items()
    }
    types = [added.get(number, _type_of(token, is_bytes)) for number, token in enumerate(found)]
    if unknown is not None:
        types[tokens.index(unknown)] = _UNKNOWN
    fields: Json = {
        "tokenizer.ggml.model": "gpt2" if is_bytes else "llama",
        "tokenizer.ggml.pre": _rule_name(backend, where) if is_bytes else "default",
        "tokenizer.ggml.tokens": tokens + [f"[PAD{number}]" for number in range(size, num_embeddings)],
        "tokenizer.ggml.token_type": types + [_UNUSED] * (num_embeddings - size),
        **_special_ids(tokenizer, where),
    }
    if is_bytes:
        fields["tokenizer.ggml.merges"] = merges
    else:  # SentencePiece: an earlier merge has the higher score
        ranks = {merge.replace(" ", ""): -rank for rank, merge in reversed(list(enumerate(merges)))}
        fields["tokenizer.ggml.scores"] = [float(ranks.get(token, -len(merges))) for token in tokens]
        fields["tokenizer.ggml.scores"] += [-float(len(merges))] * (num_embeddings - size)
        fields["tokenizer.ggml.add_space_prefix"] = "Prepend" in json.dumps(content["normalizer"])
        fields["tokenizer.ggml.unknown_token_id"] = tokens.index(unknown) if unknown is not None else 0
    for name, template in sorted(tokenizer.templates.items()):
        fields["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = template
    rebuilt = build_tokenizer({**fields, "tokenizer.ggml.add_bos_token": False}, where)
    for text in PROBE_TEXTS:
        if rebuilt.encode(text).ids != backend.encode(text, add_special_tokens=False).ids:
            raise TokensError(f"{where}: llama.cpp has no tokenizer that encodes {text!r} as this one does")
    return fields


def _type_of(token: str | None, is_bytes: bool) -> int:
    if token is None:
        return _UNUSED
    return _BYTE if not is_bytes and re.fullmatch("<0x[0-9A-F]{2}>", token) else _NORMAL


def _rule_name(backend: Tokenizer, where: str) -> str:
    """Return the known rule that splits the probe texts like this tokenizer."""
    if backend.pre_tokenizer is not None and isinstance(backend.normalizer, normalizers.NFC | None):
        expected = [backend.pre_tokenizer.pre_tokenize_str(text) for text in PROBE_TEXTS]
        for name, rule in _RULES.items():
            splitter = _splitter(rule)
            if [splitter.pre_tokenize_str(text) for text in PROBE_TEXTS] == expected:
                return name
    raise TokensError(f"{where}: splits text by a rule that is not supported; supported: {', '.join(_RULES)}")


def _special_ids(tokenizer: ChatTokenizer, where: str) -> Json:
    """Return the roles of special tokens, and whether BOS and EOS are added. At most three tokens may end an answer."""
    backend, roles = tokenizer.backend, tokenizer.special_tokens
    keys = {"bos_token": "bos", "pad_token": "padding", "unk_token": "unknown"}
    fields: Json = {
        f"tokenizer.ggml.{key}_token_id": backend.token_to_id(roles[role])
        for role, key in keys.items()
        if roles.get(role)
    }
    own = roles.get("eos_token")
    stops = sorted(tokenizer.eos, key=lambda token: (token != own, backend.token_to_id(token)))
    if not stops or len(stops) > 3:
        raise TokensError(
            f"{where}: {len(stops)} tokens end an answer ({', '.join(stops)}): a GGUF file has one to three"
        )
    for key, token in zip(("eos", "eot", "eom"), stops, strict=False):
        fields[f"tokenizer.ggml.{key}_token_id"] = backend.token_to_id(token)
    plain, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    bos, eos = fields.get("tokenizer.ggml.bos_token_id"), fields["tokenizer.ggml.eos_token_id"]
    adds_bos, adds_eos = whole[:1] == [bos] and plain[:1] != [bos], whole[-1:] == [eos] and plain[-1:] != [eos]
    if whole != [bos] * adds_bos + plain + [eos] * adds_eos:
        raise TokensError(f"{where}: puts tokens other than BOS and EOS around a text")
    return fields | {"tokenizer.ggml.add_bos_token": adds_bos, "tokenizer.ggml.add_eos_token": adds_eos}
