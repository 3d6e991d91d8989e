"""The tokenizer of a GGUF file as tokenizer.json: its vocabulary, merges, special tokens and way of splitting text.

A GGUF file has the name of its splitting rule, not the rule (`tokenizer.ggml.pre`). A name that is not in the table
below is refused: another rule would give other ids without an error.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pairwright.records.messages import Json
from pairwright.tokens.refusals import TokensError
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


def build_tokenizer(fields: Json, where: str) -> Tokenizer:
    """The tokenizer of a file's metadata.

    fields: keys and values of the file.
    where: the file's name, for errors.
    """
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
            raise TokensError(f"{where}: token {number}, {token!r}, stands twice in the vocabulary")
    if _adds_bos(fields):
        bos = tokens[fields["tokenizer.ggml.bos_token_id"]]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return backend


def tokenizer_settings(fields: Json) -> Json:
    """tokenizer_config.json: special tokens by their role, and the length of the context."""
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
    """The tokens that end an answer: end of the text and, where it is another one, end of a turn."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return list(dict.fromkeys(fields[key] for key in keys if fields.get(key) is not None))


def _adds_bos(fields: Json) -> bool:
    """Whether a text begins with BOS; a file that does not say so follows its family."""
    is_family = (
        fields["tokenizer.ggml.model"] == "llama" or _RULES.get(str(fields.get("tokenizer.ggml.pre"))) == _LLAMA3
    )
    return bool(fields.get("tokenizer.ggml.add_bos_token", is_family))


def _byte_level(fields: Json, where: str) -> Tokenizer:
    name = fields.get("tokenizer.ggml.pre")
    if name not in _RULES:
        raise TokensError(
            f"{where}: splits text by the rule {name!r}; known are {', '.join(_RULES)}: take the tokenizer of the "
            "original model with --tokenizer FOLDER"
        )
    rule = _RULES[name]
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    # Added tokens stand in the vocabulary, too, so that they keep their ids; the model itself cannot reach them.
    vocabulary = {
        token: number for number, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != _UNUSED
    }
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    # Llama 3 takes a word that is a token as it is, whatever its merges would give.
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rule == _LLAMA3))
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in ("gpt2", "digits"))
    first: list[Any] = []
    if rule == "digits":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    elif rule != "gpt2":
        first = [pre_tokenizers.Split(Regex(rule), "isolated")]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, levels])
    if rule == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: Json, where: str) -> Tokenizer:
    """Pieces with scores: of two merges the one whose result has the higher score comes first."""
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
