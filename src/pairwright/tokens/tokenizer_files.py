"""The vocabulary of a model: its folder or Hub id, and the file that holds its tokens.

    tokenizer.json     as it is
    tekken.json        Mistral's, read through mistral-common
    tokenizer.model    SentencePiece (BPE), read through sentencepiece

The last two are rebuilt for `tokenizers`, which has offsets, and compared with the library on texts that tell
vocabularies apart; one that differs is refused. Code of a model folder is never run: a
vocabulary that only such code can read (tiktoken files) is refused with the way to a tokenizer.json.
"""

import base64
import importlib
import json
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
    """The folder of a model: a path, one of its files, or a Hub id."""
    if is_address(name):
        raise TokensError(f"{place(name)}: an address, but a tokenizer is read on this machine: copy its folder here")
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
    """The fast tokenizer of a folder, and the special tokens that the vocabulary itself names."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json")), {}
    if (folder / "tekken.json").is_file():
        return _from_tekken(folder / "tekken.json")
    if (folder / "tokenizer.model").is_file() and not _is_tiktoken(folder / "tokenizer.model"):
        return _from_sentencepiece(folder / "tokenizer.model")
    vocabularies = sorted(folder.glob("*.model")) + sorted(folder.glob("*.tiktoken"))
    if vocabularies:
        raise TokensError(
            f"{vocabularies[0]}: a tiktoken file; how it splits text is code of the model, which is never run: write a "
            "tokenizer.json in the model's own environment, with the tiktoken encoding that its tokenizer has: "
            "transformers.integrations.tiktoken.convert_tiktoken_to_fast(encoding, folder)"
        )
    raise TokensError(f"{folder}: no tokenizer.json; convert the tokenizer with transformers' save_pretrained")


def _from_tekken(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Ranks of bytes, as tiktoken has them, after a block of special tokens."""
    library = _import("mistral_common.tokens.tokenizers.tekken", f"{path}: Mistral's vocabulary", "mistral-common")
    try:
        native = library.Tekkenizer.from_file(str(path))
        content = json.loads(path.read_text(encoding="utf-8"))
        num_special = int(native.num_special_tokens)
        entries = content["vocab"][: native.n_words - num_special]
        tokens = [base64.b64decode(entry["token_bytes"]) for entry in entries]
        pattern = str(content["config"]["pattern"])
    except Exception as error:  # a file that its own library does not read is input
        raise TokensError(f"{path}: not a Tekken vocabulary: {type(error).__name__}: {error}") from None
    characters = {byte: character for character, byte in byte_alphabet().items()}
    texts = ["".join(characters[byte] for byte in token) for token in tokens]
    special = [native.id_to_piece(number) for number in range(num_special)]
    vocabulary = {text: number for number, text in enumerate([*special, *texts])}
    backend = Tokenizer(models.BPE(vocabulary, list_merges(texts, {text: n for n, text in enumerate(texts)})))
    splits = pre_tokenizers.Split(Regex(pattern), "isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([splits, levels])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    _compare(path, backend, lambda text: native.encode(text, bos=False, eos=False))
    return backend, {"bos_token": special[native.bos_id], "eos_token": special[native.eos_id]}


def _from_sentencepiece(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Pieces with scores: of two merges the one whose result has the higher score comes first."""
    library = _import("sentencepiece", f"{path}: a SentencePiece vocabulary")
    try:
        native = library.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise TokensError(f"{path}: not a SentencePiece vocabulary: {error}") from None
    numbers = range(native.vocab_size())
    pieces = [native.id_to_piece(number) for number in numbers]
    # The rank of a piece in the order of falling scores; equal scores keep the order of the vocabulary.
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
    ends = {"bos_token": native.bos_id(), "eos_token": native.eos_id()}  # -1 where there is none
    return backend, {name: pieces[number] for name, number in ends.items() if number >= 0}


def list_merges(texts: Iterable[str], ranks: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to build a token of two others, in the order of the token's rank."""
    merges = []
    for text in texts:
        for position in range(1, len(text)):
            left, right = text[:position], text[position:]
            if left in ranks and right in ranks:
                merges.append((ranks[text], ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _compare(path: Path, backend: Tokenizer, encode: Callable[[str], Any]) -> None:
    for text in _PROBES:
        ours, theirs = backend.encode(text, add_special_tokens=False).ids, list(encode(text))
        if ours != theirs:
            raise TokensError(
                f"{path}: cannot be rebuilt exactly ({text!r} is {ours}, but its library says {theirs}): {_SAVE}"
            )


def _is_tiktoken(path: Path) -> bool:
    """Whether the first line is a token in base64 and its rank."""
    with path.open("rb") as file:
        return re.fullmatch(rb"[A-Za-z0-9+/]+={0,2} \d+\s*", file.readline(4096)) is not None


def byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones for themselves, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _import(module: str, what: str, package: str | None = None) -> Any:
    """An optional library, loaded when it is needed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TokensError(f"{what} needs {package or module}: pip install {package or module}") from None
