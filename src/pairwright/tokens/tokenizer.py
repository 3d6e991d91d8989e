"""A tokenizer with its chat template, from a folder, from transformers, or from its parts; and token offsets.

Does not need transformers. Files read from a model folder: the vocabulary (tokenizer_files.py), tokenizer_config.json
(special tokens, one template or a list of named ones), chat_template.jinja, additional_chat_templates/,
generation_config.json (stop tokens).
"""

import copy
import itertools
import json
import re
import unicodedata
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers

from pairwright.config import TokensConfig
from pairwright.generate.template_variables import KEY, explain_variables
from pairwright.records.messages import Json
from pairwright.records.tool_texts import to_chat_tool
from pairwright.tokens.clock import FIXED, parse_time
from pairwright.tokens.declared_rows import Row, read_rows
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.template.environment import Clock
from pairwright.tokens.template.render import Template
from pairwright.tokens.tokenizer_files import byte_alphabet, find_folder, load_backend

Learnt = TypeVar("Learnt")
Offset = tuple[NDArray[np.int32], NDArray[np.int32]]  # ids (N) and their character offsets (N, 2)
_NEVER = b"\xff"  # not valid UTF-8: never matches a text
_MISSES = 16  # consecutive misses before giving up
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes(dict[int, bytes]):
    """The bytes that each token spells, looked up lazily.

    If normalization leaves a text unchanged, byte-level tokens spell it, so comparing total lengths is enough.
    """

    def __init__(self, backend: Tokenizer) -> None:
        is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        added = backend.get_added_tokens_decoder()
        self._sizes = np.zeros(max(backend.get_vocab_size(), *added, 0) + 1, np.int32)  # bytes of each known token
        for number, token in added.items():
            as_it_is = is_byte_level or token.special
            self._keep(number, token.content.encode() if as_it_is else _with_spaces(token.content))
        self._backend = backend
        self._misses = 0
        self._spelt = _byte_level if is_byte_level else _with_spaces
        normalizer = backend.normalizer
        self._is_composed = isinstance(normalizer, normalizers.NFC)
        # Requires a token for each byte, and no space added before a text.
        self._adds_up = (
            is_byte_level
            and (normalizer is None or self._is_composed)
            and all(backend.token_to_id(character) is not None for character in _BYTES)
            and backend.encode("a", add_special_tokens=False).ids == [backend.token_to_id("a")]
        )

    def __missing__(self, number: int) -> bytes:
        token = self._backend.id_to_token(number)
        return self._keep(number, _NEVER if token is None else self._spelt(token))

    def _keep(self, number: int, spelling: bytes) -> bytes:
        self[number] = spelling = spelling or _NEVER
        self._sizes[number] = len(spelling)
        return spelling

    @property
    def pays(self) -> bool:
        """False after several consecutive texts that are not spelled byte by byte: this tokenizer changes text."""
        return self._misses < _MISSES

    def encode(self, text: str, numbers: list[int]) -> Offset | None:
        """Return ids and character offsets; None if the tokens do not spell the text byte by byte."""
        data = text.encode()
        ids = np.array(numbers, dtype=np.int32)
        sizes = self._sizes[ids]
        if not sizes.all():  # look up new tokens
            for number in ids[sizes == 0].tolist():
                self[number]
            sizes = self._sizes[ids]
        both = np.empty((2, len(ids)), dtype=np.int32)  # starts and ends are contiguous
        starts, ends = both
        sizes.cumsum(out=ends)
        is_spelt = (ends[-1] if len(ends) else 0) == len(data)
        if is_spelt and not (self._adds_up and (not self._is_composed or unicodedata.is_normalized("NFC", text))):
            is_spelt = b"".join(map(self.__getitem__, numbers)) == data
        if not is_spelt:
            self._misses += 1
            return None
        self._misses = 0
        np.subtract(ends, sizes, out=starts)
        if len(data) != len(text):  # not ASCII: convert byte offsets to characters
            # Continuation bytes are 0b10xxxxxx; every other byte begins a character.
            is_first = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
            character = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
            both[0] = character[starts]
            both[1] = character[ends - 1] + 1
        return ids, both.T


def sort_offsets(pairs: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Return offsets (N, 2) for bisection: starts and ends never decrease, and no token is empty.

    Some tokenizers give several tokens the same characters, or decreasing offsets.
    """
    flat = np.fromiter(itertools.chain.from_iterable(pairs), np.int32, count=2 * len(pairs)).reshape(-1, 2)
    flat[:, 1] = np.maximum(flat[:, 1], flat[:, 0] + 1)
    return np.maximum.accumulate(flat, axis=0) if len(flat) else flat


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return _NEVER


def _with_spaces(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: "▁" is a space, "<0x0A>" a single byte."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()


_BYTES = byte_alphabet()


_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MAX_SCHEMAS = 256  # lists of tool schemas that are kept
_MAX_VARIANTS = 64  # sets of template variables whose tokenizers are kept
_LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")


class ChatTokenizer:
    """A fast tokenizer with its templates and special tokens. Caches properties of its templates (`learnt`)."""

    def __init__(
        self,
        backend: Tokenizer,
        template: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        stop_tokens: tuple[str, ...] | None = None,
        clock: Clock = lambda: FIXED,
        grammar: tuple[Row, ...] = (),
    ) -> None:
        self.backend = _without_truncation(backend)
        self.special_tokens = dict(special_tokens or {})
        self.variables = {**self.special_tokens, **(variables or {})}
        self.added = {token.content: number for number, token in self.backend.get_added_tokens_decoder().items()}
        self.special = frozenset(
            token.content for token in self.backend.get_added_tokens_decoder().values() if token.special
        )
        # is_control[id]: whether the id is an added token, for every id of the vocabulary.
        self.is_control = np.zeros(max(self.backend.get_vocab_size(), *self.added.values(), 1) + 1, dtype=bool)
        self.is_control[list(self.added.values())] = True
        eos = self.special_tokens.get("eos_token")
        self.eos = frozenset([eos] if eos else []) | frozenset(stop_tokens or ())
        self.grammar = grammar  # declared rows, tried before those of the package
        self.learnt: dict[Any, Any] = {}  # cache: patterns, forms of calls, shapes of turns
        self._bytes: TokenBytes | None = None
        self._untrimmed: Tokenizer | None = None
        self._schemas: dict[bytes, list[Json]] = {}
        self._variants: dict[bytes, ChatTokenizer] = {}  # keyed by additional variables, or by time
        self._clock = clock
        self._templates = {"default": template} if isinstance(template, str) else dict(template)
        self._renderers: dict[str, Template] = {}

    @classmethod
    def from_folder(cls, folder: str | Path, *, template: str | None = None, **options: Any) -> "ChatTokenizer":
        """Read a model's folder or Hub id; `template` (a template or the name of one) replaces the default.

        A folder without a template (a base model) gives a tokenizer that encodes raw text only.
        """
        folder = find_folder(folder)
        config = _read_json(folder / "tokenizer_config.json")
        backend, own = load_backend(folder)
        if (folder / "tokenizer.json").is_file():
            _follow_config(backend, config)
        special = own | special_tokens_of({**_read_json(folder / "special_tokens_map.json"), **config})
        _add_missing(backend, config, special)
        stops = _stop_tokens(_read_json(folder / "generation_config.json"), backend)
        templates = read_templates(folder, config)
        if template is not None:
            templates = {"default": templates.get(template, template)}
        return cls(backend, templates, special_tokens=special, stop_tokens=stops, **options)

    @property
    def has_template(self) -> bool:
        """Whether it can render chats; without a template, it encodes raw text only."""
        return bool(self._templates)

    @property
    def templates(self) -> Mapping[str, str]:
        """Sources of the chat templates by name; "default" is for plain chats."""
        return self._templates

    def renderer(self, tools: list[Json] | None) -> Template:
        """Return the template for a conversation: `tool_use` if it exists and there are tools."""
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if name not in self._renderers:
            if not self._templates:
                raise Refusal("no_template", "the tokenizer has no chat template to render a chat with")
            if name not in self._templates:
                raise TokensError(f"no default chat template among {sorted(self._templates)}: pass template=<name>")
            self._renderers[name] = Template(self._templates[name], variables=self.variables, clock=self._clock)
        return self._renderers[name]

    def with_variables(self, variables: Mapping[str, Any]) -> "ChatTokenizer":
        """Return the tokenizer with additional template variables, such as `{"enable_thinking": False}`.

        The returned tokenizer has its own cache (`learnt`). Raises a Refusal for a variable that no template reads.
        """
        if not variables:
            return self
        key = msgspec.json.encode(variables, order="sorted")
        if key not in self._variants:
            problem = explain_variables(variables, self._templates.values())
            if problem is not None:
                raise Refusal("template_variables", problem)
            self._add_variant(key).variables = {**self.variables, **variables}
        return self._variants[key]

    def _add_variant(self, key: bytes) -> "ChatTokenizer":
        if len(self._variants) >= _MAX_VARIANTS:
            self._variants.clear()
        variant = copy.copy(self)
        variant.learnt, variant._renderers, variant._variants = {}, {}, {}
        self._variants[key] = variant
        return variant

    def at(self, moment: datetime | None) -> "ChatTokenizer":
        """Return a tokenizer whose templates print this time; `self` if no template prints the time."""
        if moment is None or moment == self._clock() or not self.reads_clock:
            return self
        key = moment.isoformat().encode()
        if key not in self._variants:
            self._add_variant(key)._clock = lambda: moment
        return self._variants[key]

    @property
    def reads_clock(self) -> bool:
        """Whether a template prints the time."""
        return any("strftime_now" in source for source in self._templates.values())

    def schemas(self, tools: Sequence[Json] | None) -> list[Json] | None:
        """Convert tool schemas to the form that templates take; equal schemas give the same list, for caching."""
        if not tools:
            return None
        key = msgspec.json.encode(list(tools))
        if key not in self._schemas:
            if len(self._schemas) > _MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[key] = [to_chat_tool(tool) for tool in tools]
        return self._schemas[key]

    def learn(self, key: Any, compute: Callable[[], Learnt]) -> Learnt:
        """Return what `compute` returned for this key, computed once."""
        if key not in self.learnt:
            self.learnt[key] = compute()
        found: Learnt = self.learnt[key]
        return found

    def encode(self, text: str) -> Offset:
        """Return ids (N,) and their character offsets (N, 2); starts and ends never decrease."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Offset]:
        """Encode several texts like `encode`, on as many cores as `tokenizers` may use."""
        if self.backend.truncation is not None or self.backend.padding is not None:
            # other code has enabled truncation or padding
            self.backend, self._untrimmed = _without_truncation(self.backend), None
        if self._bytes is None:
            self._bytes = TokenBytes(self.backend)
        if not self._bytes.pays:
            return [self._with_offsets(text) for text in texts]
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            self._bytes.encode(text, encoding.ids) or self._with_offsets(text)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _with_offsets(self, text: str) -> Offset:
        if self._untrimmed is None:
            self._untrimmed = self.backend
            # Such a post-processor leaves white space out of the offsets, so that tokens seem not to touch.
            if "trim_offsets=True" in str(self.backend.post_processor):
                self._untrimmed = copy.deepcopy(self.backend)
                self._untrimmed.post_processor = None
        encoding = self._untrimmed.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32), sort_offsets(encoding.offsets)

    def decode(self, ids: Any, *, skip_control: bool = False) -> str:
        """Decode ids, with or without control tokens."""
        text: str = self.backend.decode([int(number) for number in ids], skip_special_tokens=skip_control)
        return text


def load_tokenizer(options: TokensConfig) -> ChatTokenizer:
    """Load the tokenizer of the options, with their chat template, grammar, clock and template variables."""
    folder = str(options.tokenizer)
    template = None if options.chat_template is None else choose_template(folder, options.chat_template)
    grammar = () if options.grammar is None else read_rows(Path(options.grammar), is_users=True)
    moment = FIXED if options.clock is None else parse_time(options.clock)
    if moment is None:
        raise TokensError(f"tokens.clock: got {options.clock!r}, expected a time such as 2025-07-01T12:00:00")
    tokenizer = ChatTokenizer.from_folder(folder, template=template, grammar=grammar, clock=lambda: moment)
    try:
        return tokenizer.with_variables(options.chat_template_kwargs)
    except Refusal as refusal:
        raise TokensError(f"tokens.chat_template_kwargs: {refusal.detail}") from None


def record_variables(info: Mapping[str, Any]) -> Json:
    variables = info.get(KEY)
    if not variables:
        return {}
    if not isinstance(variables, dict):
        raise Refusal("template_variables", f"info.{KEY}: got {variables!r}, expected an object")
    return variables


def choose_template(folder: str | Path, template: str | Path) -> str:
    """Return a chat template by its name in the tokenizer (`tool_use`) or by a file's path."""
    folder = find_folder(folder)
    named = read_templates(folder, _read_json(folder / "tokenizer_config.json"))
    is_file = Path(template).is_file()
    if str(template) in named:
        if is_file:
            raise TokensError(f"{template}: is a file and a template of the tokenizer: write ./{template} for the file")
        return named[str(template)]
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        names = f", or one of {', '.join(sorted(named))}" if named else ""
        raise TokensError(
            f"{template}: no chat template: {why}; expected a file with a Jinja template{names}"
        ) from error


_known: weakref.WeakKeyDictionary[Any, tuple[Any, ChatTokenizer]] = weakref.WeakKeyDictionary()


def chat_tokenizer(tokenizer: Any) -> ChatTokenizer:
    """Return a ChatTokenizer for a ChatTokenizer, a folder, or a transformers fast tokenizer."""
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer
    if isinstance(tokenizer, str | Path):
        return ChatTokenizer.from_folder(tokenizer)
    if isinstance(tokenizer, Tokenizer):
        raise TokensError("a bare tokenizers.Tokenizer has no chat template: use ChatTokenizer(tokenizer, template)")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        template = {}  # raw text only
    if not isinstance(backend, Tokenizer) or not isinstance(template, str | Mapping):
        raise TokensError(f"{type(tokenizer).__name__}: expected a fast tokenizer")
    # Reuse the ChatTokenizer of a transformers tokenizer while its backend and template are the same.
    key = (id(backend), template if isinstance(template, str) else tuple(template.items()))
    known = _known.get(tokenizer)
    if known is None or known[0] != key:
        known = (key, ChatTokenizer(backend, template, special_tokens=tokenizer.special_tokens_map))
        _known[tokenizer] = known
    return known[1]


def read_templates(folder: Path, config: Json) -> dict[str, str]:
    """Read named templates like transformers: Jinja files take precedence over the configuration."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    # Processors have a separate file.
    value = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if value is None or isinstance(value, str):
        return {} if value is None else {"default": value}
    try:
        return dict(msgspec.convert([(item["name"], item["template"]) for item in value], list[tuple[str, str]]))
    except (TypeError, KeyError, msgspec.ValidationError):
        raise TokensError(f"{folder}: chat_template: expected text, or a list of {{name, template}}") from None


def special_tokens_of(config: Json) -> dict[str, Any]:
    """Return special tokens as text: bos_token and the like, and model-specific ones (`image_token`, ...)."""
    tokens = {name: _content(config[name]) for name in _TOKEN_NAMES if config.get(name)}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        tokens |= {name: _content(token) for name, token in extra.items()}
    return tokens


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _read_json(path: Path) -> Json:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TokensError(f"{path}: expected a JSON object")
    return value


def _follow_config(backend: Tokenizer, config: Json) -> None:
    """Fix Llama tokenizers: tokenizer.json adds a space before each piece, the class only before the first word."""
    described = json.loads(backend.to_str()) if config.get("tokenizer_class") in _LLAMA_CLASSES else {}
    if "▁" not in json.dumps([described.get("normalizer"), described.get("pre_tokenizer")], ensure_ascii=False):
        return
    # Add a space before every piece of text (legacy), before the first one, or nowhere.
    scheme = "always" if config.get("legacy", False) else "first"
    if config.get("add_prefix_space") is False:
        scheme = "never"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)


def _add_missing(backend: Tokenizer, config: Json, special: Mapping[str, Any]) -> None:
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    # Sorted by id: added tokens get their ids in this order.
    for _, entry in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if entry["content"] not in known:
            backend.add_tokens([AddedToken(entry["content"], **{flag: entry.get(flag, False) for flag in flags})])
    more = [*special.values(), *map(_content, config.get("additional_special_tokens") or [])]
    missing = [token for token in dict.fromkeys(more) if token not in known and backend.token_to_id(token) is None]
    if missing:
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])


def _stop_tokens(generation: Json, backend: Tokenizer) -> tuple[str, ...] | None:
    ids = generation.get("eos_token_id")
    if ids is None:
        return None
    tokens = [backend.id_to_token(number) for number in (ids if isinstance(ids, list) else [ids])]
    return tuple(token for token in tokens if token is not None)


def _without_truncation(backend: Tokenizer) -> Tokenizer:
    if backend.truncation is None and backend.padding is None:
        return backend
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
