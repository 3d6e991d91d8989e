"""Encode text as token ids with offsets: as a whole, or split at boundaries and escaped control tokens."""

import itertools
import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pairwright.tokens.refusals import Refusal
from pairwright.tokens.spans.control_tokens import compile_tokens, control_pattern
from pairwright.tokens.spans.regions import Region
from pairwright.tokens.template.render import Rendered
from pairwright.tokens.tokenizer import ChatTokenizer, Offset, sort_offsets

Boundaries = Literal["whole", "split"]
Controls = Literal["keep", "escape", "refuse"]


class Encoded(NamedTuple):
    """Ids with character offsets, which never decrease. `is_control[id]`: whether an id is an added token."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    is_control: NDArray[np.bool_]
    is_split: bool


class Part(NamedTuple):
    """Text to encode. `escaped` are spans of control tokens to encode as text; no token spans a position in `cuts`."""

    text: str
    escaped: tuple[tuple[int, int], ...] = ()
    cuts: tuple[int, ...] = ()


class _Cuts(NamedTuple):
    """Added tokens after which text may always be cut (`hard`), and a pattern for all added tokens."""

    hard: frozenset[str]
    pattern: re.Pattern[str]


def _find_cuts(tokenizer: ChatTokenizer) -> _Cuts | None:
    added = tokenizer.backend.get_added_tokens_decoder()
    takes_more = any(token.lstrip or token.rstrip or token.single_word for token in added.values())
    tokens = [token.content for token in added.values() if not token.normalized]
    if _adds_prefix(tokenizer) or takes_more or not tokens:
        return None
    # Exclude a token that occurs inside a longer one: it may be part of the longer token.
    beginnings = "\0".join(token[:-1] for token in tokens)
    return _Cuts(frozenset(token for token in tokens if token not in beginnings), compile_tokens(tokens))


class PrefixEncoder:
    """Encodes the texts of one run, which share prefixes: every distinct segment is encoded once.

    A segment ends with an added token, which merges cannot cross, so its tokens do not depend on its neighbours: a call
    in a turn and in later histories is encoded once. If the tokenizer treats the start of a text specially, or has an
    added token that absorbs white space around it, every text is encoded as a whole.
    """

    def __init__(self, tokenizer: ChatTokenizer, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        cuts = tokenizer.learn("cuts", lambda: _find_cuts(tokenizer))
        self._numbers: dict[str, list[int]] = {}  # segments of each text; empty if texts are encoded as a whole
        if cuts is not None and any(texts):
            self._encode_segments(texts, cuts)

    def _encode_segments(self, texts: Sequence[str], cuts: _Cuts) -> None:
        numbers: dict[str, int] = {}  # distinct segments
        before: list[str] = []  # segments of the previous text
        for text in texts:
            segments = _split_text(text, cuts, before)
            self._numbers[text] = [numbers.setdefault(segment, len(numbers)) for segment in segments]
            before = segments
        encoded = [self._tokenizer.encode(segment) for segment in numbers]
        # Start of each segment in characters and tokens, and the end of the last one.
        self._chars = np.cumsum([0, *map(len, numbers)], dtype=np.int32)
        self._bounds = np.cumsum([0, *(len(ids) for ids, _ in encoded)])
        # (3, N) ids, starts and ends of the tokens of all segments, relative to their segment.
        self._pool = np.vstack([np.concatenate(column).T for column in zip(*encoded, strict=True)])

    def encode(self, text: str) -> Encoded:
        if not self._numbers:
            return index_tokens(self._tokenizer, *self._tokenizer.encode(text), is_split=False)
        numbers = np.array(self._numbers[text], np.int64)
        lengths = self._chars[numbers + 1] - self._chars[numbers]  # (S,) characters of each segment
        sizes = self._bounds[numbers + 1] - self._bounds[numbers]  # (S,) tokens of each segment
        self._char_ends, self._token_ends = np.cumsum(lengths, dtype=np.int32), np.cumsum(sizes)
        # (N,) positions of the text's tokens in the pool.
        places = np.arange(sizes.sum()) + np.repeat(self._bounds[numbers + 1] - self._token_ends, sizes)
        ids, starts, ends = self._rows = self._pool[:, places]
        self._rows[1:] += np.repeat(self._char_ends - lengths, sizes)
        return Encoded(ids.copy(), starts, ends, self._tokenizer.is_control, is_split=False)

    def split(self, text: str, cuts: list[int]) -> Encoded:
        """Encode the last text again, with no token across these positions."""
        char, token = 0, 0
        if self._numbers and (number := int(np.searchsorted(self._char_ends, cuts[0], side="left"))):
            char, token = int(self._char_ends[number - 1]), int(self._token_ends[number - 1])
        tail = _encode_in_parts(self._tokenizer, text[char:], [edge - char for edge in cuts], [], continues=char > 0)
        if not token:
            return index_tokens(self._tokenizer, *tail, is_split=True)
        ids = np.concatenate([self._rows[0, :token], tail[0]])
        offsets = np.concatenate([self._rows[1:, :token].T, tail[1] + np.int32(char)])
        return index_tokens(self._tokenizer, ids, offsets, is_split=True)


def _split_text(text: str, cuts: _Cuts, before: list[str]) -> list[str]:
    """Split a text after added tokens. `before` are the segments of the previous text; a common prefix is reused.

    >>> _split_text("<a>hi<b>x<a>", _Cuts(frozenset(["<a>"]), re.compile("<a>|<b>")), [])
    ['<a>', 'hi<b>x<a>']
    """
    segments, start = [], 0
    for segment in before[:-1]:  # without the rest after the last cut
        if not text.startswith(segment, start):
            break
        segments.append(segment)
        start += len(segment)
    for match in cuts.pattern.finditer(text, start):
        if match.group() in cuts.hard:
            segments.append(text[start : match.end()])
            start = match.end()
    return [*segments, text[start:]] if start < len(text) else segments


def encode_text(
    tokenizer: ChatTokenizer,
    rendered: Rendered,
    regions: list[Region],
    *,
    boundaries: Boundaries,
    controls: Controls,
    encoder: PrefixEncoder | None = None,
) -> tuple[Encoded, int]:
    """Encode a rendered conversation, a text of `encoder`; also return the number of control tokens encoded as text."""
    text = rendered.text
    escaped = find_escaped_controls(tokenizer, rendered, regions, controls)
    edges = [edge for region in regions for edge in (region.start, region.end)] if boundaries == "split" else []
    if escaped:
        return index_tokens(tokenizer, *_encode_in_parts(tokenizer, text, edges, escaped), is_split=True), len(escaped)
    if encoder is not None:
        encoded = encoder.encode(text)
    else:
        encoded = index_tokens(tokenizer, *tokenizer.encode(text), is_split=False)
    cuts = _find_inside(encoded, edges) if edges else []
    if cuts and encoder is not None:
        encoded = encoder.split(text, cuts)
    elif cuts:
        encoded = index_tokens(tokenizer, *_encode_in_parts(tokenizer, text, cuts, []), is_split=True)
    return encoded, 0


def index_tokens(
    tokenizer: ChatTokenizer, ids: NDArray[np.int32], offsets: NDArray[np.int32], *, is_split: bool
) -> Encoded:
    return Encoded(ids, offsets[:, 0], offsets[:, 1], tokenizer.is_control, is_split)


def encode_continuation(tokenizer: ChatTokenizer, text: str, after: str | None = None) -> Offset:
    """Encode text that continues other text, without the space that some tokenizers put before a first word. `after` is
    the control token before it, if any: some tokenizers treat text after one specially."""
    if not _adds_prefix(tokenizer):
        return tokenizer.encode(text)
    # Encode after an anchor and drop its tokens; if the anchor merges with the text, try the next one.
    for anchor in (*([after] if after else []), "\n", "a", ".", "0"):
        ids, offsets = tokenizer.encode(anchor + text)
        cut = int(np.searchsorted(offsets[:, 0], np.int32(len(anchor)), side="left"))
        if np.all(offsets[:cut, 1] <= len(anchor)):
            return ids[cut:], offsets[cut:] - len(anchor)
    return tokenizer.encode(text)


def encode_parts(tokenizer: ChatTokenizer, parts: Sequence[Part], *, continues: bool) -> dict[Part, Offset]:
    """Encode several parts at once; `continues`: they follow other text."""
    plain = [part for part in parts if not part.escaped]
    if continues and _adds_prefix(tokenizer):
        encoded = [encode_continuation(tokenizer, part.text) for part in plain]
    else:
        encoded = tokenizer.encode_many([part.text for part in plain])
    known = dict(zip(plain, encoded, strict=True))
    for part in parts:
        cuts = list(part.cuts)
        if cuts and not part.escaped:
            cuts = _find_inside(index_tokens(tokenizer, *known[part], is_split=False), cuts)
        if cuts or part.escaped:
            known[part] = _encode_in_parts(tokenizer, part.text, cuts, list(part.escaped), continues=continues)
    return known


def _adds_prefix(tokenizer: ChatTokenizer) -> bool:
    """Return whether the tokenizer treats the start of a text specially."""

    def differs() -> bool:
        after, alone = tokenizer.encode("\nhello")[0], tokenizer.encode("hello")[0]
        return list(after[-len(alone) :]) != list(alone)

    return tokenizer.learn("prefixes", differs)


def _find_inside(encoded: Encoded, edges: list[int]) -> list[int]:
    """Return the edges inside a token, except a control token."""
    numbers = encoded.ends.searchsorted(np.array(edges, np.int32), side="right").tolist()
    size = len(encoded.ids)
    return [
        edge
        for edge, number in zip(edges, numbers, strict=True)
        if number < size and encoded.starts[number] < edge and not encoded.is_control[encoded.ids[number]]
    ]


def _encode_in_parts(
    tokenizer: ChatTokenizer, text: str, cuts: list[int], escaped: list[tuple[int, int]], *, continues: bool = False
) -> Offset:
    # Cut at every edge; parts that start at an escaped position are encoded without control tokens.
    edges = sorted({0, len(text), *cuts, *(edge for pair in escaped for edge in pair)})
    plain = dict(escaped)
    ids, offsets = [], []
    for start, end in itertools.pairwise(edges):
        if start in plain:
            part_ids, part_offsets = _encode_as_text(tokenizer, text[start:end])
        elif start == 0 and not continues:
            part_ids, part_offsets = tokenizer.encode(text[:end])
        else:
            part_ids, part_offsets = encode_continuation(tokenizer, text[start:end])
        ids.append(part_ids)
        offsets.append(part_offsets + start)
    return np.concatenate(ids), np.concatenate(offsets)


def _encode_as_text(tokenizer: ChatTokenizer, text: str) -> Offset:
    """Encode with a copy of the tokenizer that has no added tokens."""

    def without_added() -> Tokenizer:
        described = json.loads(tokenizer.backend.to_str())
        return Tokenizer.from_str(json.dumps({**described, "added_tokens": []}))

    plain = tokenizer.learn("plain", without_added)
    # After an anchor, as in `encode_continuation`: offsets of the text count from 1.
    encoding = plain.encode("a" + text, add_special_tokens=False)
    pairs = [(i, o) for i, o in zip(encoding.ids, encoding.offsets, strict=True) if o[0] >= 1]
    if not pairs or pairs[0][1][0] != 1:  # the anchor merged with the text
        encoding = plain.encode(text, add_special_tokens=False)
        pairs = [(i, (o[0] + 1, o[1] + 1)) for i, o in zip(encoding.ids, encoding.offsets, strict=True)]
    ids = np.array([pair[0] for pair in pairs], dtype=np.int32)
    return ids, sort_offsets([pair[1] for pair in pairs]) - 1


def find_escaped_controls(
    tokenizer: ChatTokenizer, rendered: Rendered, regions: list[Region], controls: Controls
) -> list[tuple[int, int]]:
    """Find control tokens to encode as text: those spelled out in the text of messages without a region. Returns
    an empty list for controls="keep", and raises a Refusal for "refuse"."""
    if controls == "keep":
        return []
    generated = {region.message for region in regions}
    escaped = []
    for piece in rendered.pieces:
        if piece.message in generated:
            continue
        for match in control_pattern(tokenizer).finditer(rendered.text, piece.start, piece.end):
            if controls == "refuse":
                raise Refusal("control_tokens", f"its text contains {match.group()!r}", message=piece.message)
            escaped.append((match.start(), match.end()))
    return escaped
