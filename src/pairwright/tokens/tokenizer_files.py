"""The vocabulary of a model: its folder or Hub id, and the file that holds its tokens.

    tokenizer.json     read directly
    tekken.json        Mistral's, read with mistral-common
    tokenizer.model    SentencePiece (BPE), read with sentencepiece
    *.tiktoken, *.model  tiktoken ranks, read with tiktoken; `pat_str` in tokenizer_config.json is the split pattern

The last three are rebuilt for `tokenizers`, which returns offsets, and compared with the original library on probe
texts; a vocabulary that differs is refused. Code in a model folder is never run: tiktoken files whose split pattern
is only in code are refused; the message says what to do.
"""

import base64
import importlib
import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pairwright.paths import ModelFolderError, find_model, is_address, is_hub_id, place
from pairwright.tokens.refusals import TokensError

FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")
_SAVE = "save it with transformers' save_pretrained in the model's own environment"
_PROBES = (
    "hello world",
    "  two  spaces   é 日本",
    "def f(x):\n    return x+1\n\n\n",
    "a\tb\r\n  c ",
    "1234567 8,9",
    "   lead",
    "naïve café — “quote” don't",
    "🙂🙂 👩‍👩‍👧",
    "ALLCAPS camelCase",
    "trail   ",
)


def find_folder(name: str | Path) -> Path:
    """Return the folder of a model from a path, one of its files, or a Hub id."""
    if is_address(name):
        raise TokensError(f"{place(name)}: an address, but a tokenizer is read from a local folder: copy it here")
    folder = Path(name)
    if folder.name in FILES and folder.is_file():
        return folder.parent
    if folder.is_dir():
        return folder
    if not is_hub_id(name):
        raise TokensError(
            f"{folder}: no such folder; expected the folder of a model, with tokenizer.json, or a Hub id (org/name)"
        )
    try:
        return find_model(name, weights=False)
    except ModelFolderError as error:
        raise TokensError(str(error)) from None


def load_backend(folder: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Load the fast tokenizer of a folder, and the special tokens that the vocabulary names."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json")), {}
    if (folder / "tekken.json").is_file():
        return _from_tekken(folder / "tekken.json")
    if (folder / "tokenizer.model").is_file() and not _is_tiktoken(folder / "tokenizer.model"):
        return _from_sentencepiece(folder / "tokenizer.model")
    vocabularies = find_tiktoken_files(folder)
    if vocabularies:
        return _from_tiktoken(vocabularies, folder), {}
    raise TokensError(f"{folder}: no tokenizer.json; convert the tokenizer with transformers' save_pretrained")


def _from_tekken(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Rebuild a Tekken vocabulary: a block of special tokens, then ranks of bytes like tiktoken's."""
    library = _import("mistral_common.tokens.tokenizers.tekken", f"{path}: Mistral's vocabulary", "mistral-common")
    try:
        native = library.Tekkenizer.from_file(str(path))
        content = json.loads(path.read_text(encoding="utf-8"))
        num_special = int(native.num_special_tokens)
        entries = content["vocab"][: native.n_words - num_special]
        tokens = [base64.b64decode(entry["token_bytes"]) for entry in entries]
        pattern = str(content["config"]["pattern"])
    except Exception as error:  # the library raises various errors for a file that it cannot read
        raise TokensError(f"{path}: not a Tekken vocabulary: {type(error).__name__}: {error}") from None
    texts = _spell_bytes(tokens)
    special = [native.id_to_piece(number) for number in range(num_special)]
    vocabulary = {text: number for number, text in enumerate([*special, *texts])}
    model = models.BPE(vocabulary, list_merges(texts, {text: n for n, text in enumerate(texts)}))
    backend = _make_byte_level(model, pattern)
    backend.add_special_tokens(special)
    _compare(path, backend, lambda text: native.encode(text, bos=False, eos=False))
    return backend, {"bos_token": special[native.bos_id], "eos_token": special[native.eos_id]}


def _from_sentencepiece(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Rebuild a SentencePiece vocabulary: merges are ordered by the score of their result."""
    library = _import("sentencepiece", f"{path}: a SentencePiece vocabulary")
    try:
        native = library.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise TokensError(f"{path}: not a SentencePiece vocabulary: {error}") from None
    numbers = range(native.vocab_size())
    pieces = [native.id_to_piece(number) for number in numbers]
    # Rank by descending score; equal scores keep the order of the vocabulary.
    by_score = sorted(numbers, key=lambda number: (-native.get_score(number), number))
    ranks = {pieces[number]: rank for rank, number in enumerate(by_score)}
    controls = [pieces[number] for number in numbers if native.is_control(number)]
    ordinary = [piece for piece in pieces if piece not in controls]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.BPE(
            vocabulary,
            list_merges(ordinary, ranks),
            unk_token=native.id_to_piece(native.unk_id()),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(controls)
    _compare(path, backend, native.encode)
    ends = {"bos_token": native.bos_id(), "eos_token": native.eos_id()}  # -1: none
    return backend, {name: pieces[number] for name, number in ends.items() if number >= 0}


def _from_tiktoken(paths: list[Path], folder: Path) -> Tokenizer:
    """Rebuild a tiktoken vocabulary: ranks of bytes, and special tokens with the ids of tokenizer_config.json."""
    path, file = paths[0], folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    pattern = config.get("pat_str")
    if len(paths) > 1:
        raise TokensError(f"{folder}: several tiktoken files: {', '.join(item.name for item in paths)}; expected one")
    if not isinstance(pattern, str):
        raise TokensError(
            f"{path}: a tiktoken file; text is split by code of the model, which is never run. If it splits only by a "
            'pattern, write the pattern into tokenizer_config.json as "pat_str"; else write a tokenizer.json in the '
            "model's own environment, where `encoding` is the tiktoken encoding of its tokenizer: "
            "transformers.integrations.tiktoken.convert_tiktoken_to_fast(encoding, folder)"
        )
    library = _import("tiktoken", f"{path}: a tiktoken file")
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
        native = library.Encoding(path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        special = {int(number): str(token["content"]) for number, token in config["added_tokens_decoder"].items()}
    except KeyError:
        raise TokensError(f"{file}: expected added_tokens_decoder, which has the ids of special tokens") from None
    except Exception as error:  # the library raises various errors for a file that it cannot read
        raise TokensError(f"{path}: not a tiktoken vocabulary: {type(error).__name__}: {error}") from None
    if clash := sorted(set(special) & set(ranks.values())):
        raise TokensError(f"{file}: added_tokens_decoder: {clash[0]} is the id of a token in {path.name} as well")
    texts = dict(zip(_spell_bytes(ranks), ranks.values(), strict=True))
    vocabulary = texts | {content: number for number, content in special.items()}
    # ignore_merges: a piece of text that equals a token becomes that token, without merging.
    backend = _make_byte_level(models.BPE(vocabulary, list_merges(texts, texts), ignore_merges=True), pattern)
    # The two libraries interpret some patterns ("++") differently: compare many short texts of mixed characters.
    _compare(path, backend, native.encode_ordinary, texts=(*_PROBES, *_mix_characters()))
    return backend


def _spell_bytes(tokens: Iterable[bytes]) -> list[str]:
    characters = {byte: character for character, byte in byte_alphabet().items()}
    return ["".join(characters[byte] for byte in token) for token in tokens]


def _make_byte_level(model: models.BPE, pattern: str) -> Tokenizer:
    """Return a tokenizer that splits text by a pattern and spells the pieces with GPT-2's characters for bytes."""
    backend = Tokenizer(model)
    splits = pre_tokenizers.Split(Regex(pattern), "isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([splits, levels])
    backend.decoder = decoders.ByteLevel()
    return backend


def _mix_characters() -> list[str]:
    """Return random texts of a few stretches, each of one kind of characters."""
    source = random.Random(0)
    letters, signs = ("aZ", "é", "日本", "'s't'll'RE"), (".,!?/(){}", "_-+=<>|", "🙂\u200dא़")
    kinds = (*letters, *signs, "0123", "٣", " ", "  \t", "\n\r", "\u00a0\u3000")

    def stretch() -> str:
        return "".join(source.choices(source.choice(kinds), k=source.randrange(1, 6)))

    return ["".join(stretch() for _ in range(source.randrange(1, 7))) for _ in range(3000)]


def find_tiktoken_files(folder: Path) -> list[Path]:
    """Return the tiktoken vocabularies of a folder, recognised by content."""
    return [path for ending in ("*.model", "*.tiktoken") for path in sorted(folder.glob(ending)) if _is_tiktoken(path)]


def list_merges(texts: Iterable[str], ranks: dict[str, int]) -> list[tuple[str, str]]:
    """Return every way to merge two tokens into a third, by rank of the result."""
    merges = []
    for text in texts:
        for position in range(1, len(text)):
            left, right = text[:position], text[position:]
            if left in ranks and right in ranks:
                merges.append((ranks[text], ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _compare(path: Path, backend: Tokenizer, encode: Callable[[str], Any], texts: Iterable[str] = _PROBES) -> None:
    for text in texts:
        ours, theirs = backend.encode(text, add_special_tokens=False).ids, list(encode(text))
        if ours != theirs:
            raise TokensError(
                f"{path}: cannot be rebuilt exactly ({text!r} is {ours}, but its library says {theirs}): {_SAVE}"
            )


def _is_tiktoken(path: Path) -> bool:
    with path.open("rb") as file:
        return re.fullmatch(rb"[A-Za-z0-9+/]+={0,2} \d+\s*", file.readline(4096)) is not None


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes: printable bytes map to themselves, others to 256 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _import(module: str, what: str, package: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TokensError(f"{what} needs {package or module}: pip install {package or module}") from None
