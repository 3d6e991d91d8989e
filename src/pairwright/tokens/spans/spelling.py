"""Text to token ids with offsets: as a whole, or in parts where a boundary or an escaped control token asks for it."""

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pairwright.tokens.refusals import Refusal
from pairwright.tokens.spans.regions import Region
from pairwright.tokens.spans.stops import control_pattern
from pairwright.tokens.template.render import Rendered
from pairwright.tokens.tokenizer import ChatTokenizer

Controls = Literal["keep", "escape", "refuse"]
_BLOCK = 4096  # characters that are compared at once: larger slices are slow to allocate
_MAX_PATTERN = 1000  # added tokens that are looked for in a text: a pattern tries them one by one
_NEAR = 1024  # tokens in which a cut is looked for at once
Offset = tuple[NDArray[np.int32], NDArray[np.int32]]  # ids (N) and their character offsets (N, 2)


class Encoded(NamedTuple):
    """Ids with character offsets. `reach` is the running maximum of what `ends` covers, for searching."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    reach: NDArray[np.int32]
    is_control: NDArray[np.bool_]
    is_split: bool


class Part(NamedTuple):
    """Text to encode; `escaped` are the places in it where a control token is meant as text."""

    text: str
    escaped: tuple[tuple[int, int], ...] = ()


class _Segment(NamedTuple):
    """Ids (N), and where their text starts and ends (2, N)."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]


class _Cuts(NamedTuple):
    """After which added tokens any text may be cut (V), and how they are found in a text that is known to its end."""

    is_hard: NDArray[np.bool_]
    pattern: re.Pattern[str] | None


def _find_cuts(tokenizer: ChatTokenizer) -> _Cuts:
    added = tokenizer.backend.get_added_tokens_decoder()
    takes_more = any(token.lstrip or token.rstrip or token.single_word for token in added.values())
    tokens = {number: token.content for number, token in added.items() if not token.normalized}
    if _adds_prefix(tokenizer) or takes_more or not tokens:
        return _Cuts(np.zeros(0, dtype=bool), None)
    # After one that goes on in a longer token, what follows decides which of the two it is.
    beginnings = "\0".join(token[:-1] for token in tokens.values())
    is_hard = np.zeros(len(tokenizer.is_control), dtype=bool)
    is_hard[[number for number, token in tokens.items() if token not in beginnings]] = True
    if len(tokens) > _MAX_PATTERN:
        return _Cuts(is_hard, None)
    # Of two tokens that begin alike the longer one, as `tokenizers` takes it.
    longest = sorted(tokens.values(), key=len, reverse=True)
    return _Cuts(is_hard, re.compile("|".join(map(re.escape, longest))))


class PrefixEncoder:
    """Encodes texts of which each begins like the one before it, as the prompts of one run do: the common part once.

    Exact, since the text is cut right after an added token, which no merge reaches across. A tokenizer that treats the
    start of a text specially, or with an added token that takes white space around it, encodes every text as a whole.
    `num_same` counts the tokens that what was last given has in common with what was given before it.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = ""
        self._size = 0  # tokens of the last text
        self._prefix = 0  # of these, the ones that the text before it has as well
        self._same_as_last = 0  # tokens of the last text as they were given: all, or those before a split
        # The last text, token by token; later texts overwrite what they do not share.
        self._ids, self._starts, self._ends, self._reach = (np.zeros(0, dtype=np.int32) for _ in range(4))
        self._is_control = np.zeros(0, dtype=bool)
        self.num_same = 0
        self._segments: dict[str, _Segment] = {}  # text up to a hard cut, with its token
        if "cuts" not in tokenizer.learnt:
            tokenizer.learnt["cuts"] = _find_cuts(tokenizer)
        cuts: _Cuts = tokenizer.learnt["cuts"]
        self._hard, self._cut_after = cuts

    def encode(self, text: str, num_shared: int = 0) -> Encoded:
        """The whole text; the first `num_shared` characters are known to be those of the text before. All arrays but
        `ids` are overwritten by the next text."""
        number = self._count_shared(text, num_shared)
        cut = int(self._ends[number - 1]) if number else 0
        tail = index_tokens(self._tokenizer, *self._encode_segments(text[cut:]), is_split=False)
        size = number + len(tail.ids)
        if size > len(self._ids):
            self._grow(max(size, 2 * len(self._ids)), number)
        shift = np.int32(cut)
        self._ids[number:size] = tail.ids
        self._is_control[number:size] = tail.is_control
        for array, values in ((self._starts, tail.starts), (self._ends, tail.ends), (self._reach, tail.reach)):
            np.add(values, shift, out=array[number:size])
        self.num_same = min(number, self._same_as_last)
        self._text, self._size, self._prefix, self._same_as_last = text, size, number, size
        return Encoded(
            self._ids[:size].copy(),
            self._starts[:size],
            self._ends[:size],
            self._reach[:size],
            self._is_control[:size],
            is_split=False,
        )

    def _encode_segments(self, text: str) -> Offset:
        """As `ChatTokenizer.encode`, by segments: a call that stands in a turn, and in the next prompt's history, is
        encoded once."""
        if self._cut_after is None:
            return self._tokenizer.encode(text)
        ends = [match.end() for match in self._cut_after.finditer(text)]
        starts = [0, *ends] if not ends or ends[-1] < len(text) else [0, *ends[:-1]]
        parts = [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=False)]
        if new := list(dict.fromkeys(part for part in parts if part not in self._segments)):
            for part, (ids, offsets) in zip(new, self._tokenizer.encode_many(new), strict=True):
                self._segments[part] = _Segment(ids, np.ascontiguousarray(offsets.T))
        segments = [self._segments[part] for part in parts]
        sizes = [len(segment.ids) for segment in segments]
        offsets = np.concatenate(
            [segment.offsets for segment in segments], axis=1
        )  # (2, N), by columns as they are read
        offsets += np.repeat(np.array(starts, np.int32), sizes)
        return np.concatenate([segment.ids for segment in segments]), offsets.T

    def split(self, cuts: list[int]) -> Encoded:
        """The last text, with no token across these positions."""
        number = self._prefix
        cut = int(self._ends[number - 1]) if number else 0
        if cuts[0] < cut:
            number = cut = 0
        tail = _encode_in_parts(self._tokenizer, self._text[cut:], [edge - cut for edge in cuts], [])
        ids = np.concatenate([self._ids[:number], tail[0]])
        before = np.stack([self._starts[:number], self._ends[:number]], axis=1)
        self._same_as_last = number
        self.num_same = min(number, self.num_same)
        return index_tokens(self._tokenizer, ids, np.concatenate([before, tail[1] + np.int32(cut)]), is_split=True)

    def forget(self) -> None:
        """A text was encoded by other means: the next one begins anew."""
        self._text, self._size, self._prefix, self._same_as_last, self.num_same = "", 0, 0, 0, 0

    def _grow(self, capacity: int, number: int) -> None:
        """Room for more tokens; the first `number` of them stay."""

        def grow(array: NDArray[Any]) -> NDArray[Any]:
            larger = np.zeros(capacity, dtype=array.dtype)
            larger[:number] = array[:number]
            return larger

        self._ids, self._starts, self._ends = grow(self._ids), grow(self._starts), grow(self._ends)
        self._reach, self._is_control = grow(self._reach), grow(self._is_control)

    def _count_shared(self, text: str, low: int) -> int:
        """How many tokens of the last text stay: up to the last hard cut in what both texts have in common."""
        if not len(self._hard) or not self._size:
            return 0
        high = min(len(text), len(self._text))
        while low < high and text[low : low + _BLOCK] == self._text[low : low + _BLOCK]:
            low = min(low + _BLOCK, high)
        high = min(low + _BLOCK, high)
        while low < high:  # the longest common beginning, by halving
            middle = (low + high + 1) // 2
            low, high = (middle, high) if text[low:middle] == self._text[low:middle] else (low, middle - 1)
        inside = int(np.searchsorted(self._ends[: self._size], np.int32(low), side="right"))
        # From the end: the last hard cut is near it.
        for stop in range(inside, 0, -_NEAR):
            hard = np.flatnonzero(self._hard[self._ids[max(stop - _NEAR, 0) : stop]])
            if len(hard):
                return max(stop - _NEAR, 0) + int(hard[-1]) + 1
        return 0


def encode_text(
    tokenizer: ChatTokenizer,
    rendered: Rendered,
    regions: list[Region],
    *,
    boundaries: Literal["whole", "split"],
    controls: Controls,
    encoder: PrefixEncoder | None = None,
    num_shared: int = 0,
) -> tuple[Encoded, int]:
    """Encode a rendered conversation; also how many control tokens stand in text that the model did not generate. Of
    the text that `encoder` had before, the first `num_shared` characters are known to be the same."""
    escaped = find_escaped_controls(tokenizer, rendered, regions, controls)
    if escaped:
        if encoder is not None:
            encoder.forget()
        cuts = [edge for region in regions for edge in (region.start, region.end)] if boundaries == "split" else []
        parts = _encode_in_parts(tokenizer, rendered.text, cuts, escaped)
        return index_tokens(tokenizer, *parts, is_split=True), len(escaped)
    if encoder is not None:
        encoded = encoder.encode(rendered.text, num_shared)
    else:
        encoded = index_tokens(tokenizer, *tokenizer.encode(rendered.text), is_split=False)
    if boundaries == "split":
        cuts = [edge for region in regions for edge in (region.start, region.end) if _is_inside(encoded, edge)]
        if cuts and encoder is not None:
            return encoder.split(cuts), 0
        if cuts:
            return index_tokens(tokenizer, *_encode_in_parts(tokenizer, rendered.text, cuts, []), is_split=True), 0
    return encoded, 0


def index_tokens(
    tokenizer: ChatTokenizer, ids: NDArray[np.int32], offsets: NDArray[np.int32], *, is_split: bool
) -> Encoded:
    """Ids with their offsets, sorted for bisection."""
    # Offsets (N, 2) by columns. Where a tokenizer gives several tokens the same characters, or steps back, the running
    # maximum keeps both `starts` and `reach` sorted, so that they can be bisected.
    starts, ends = np.ascontiguousarray(offsets[:, 0]), np.ascontiguousarray(offsets[:, 1])
    reach = np.maximum.accumulate(np.maximum(ends, starts + 1)) if len(ids) else ends
    if len(ids) > 1 and np.any(starts[1:] < starts[:-1]):
        starts = np.maximum.accumulate(starts)
    return Encoded(ids, starts, ends, reach, tokenizer.is_control[ids], is_split)


def encode_continuation(
    tokenizer: ChatTokenizer, text: str, after: str | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Encode text that continues other text: without the space that some tokenizers put before a first word. `after` is
    the control token before it, if there is one: some tokenizers treat what follows one specially."""
    if not _adds_prefix(tokenizer):
        return tokenizer.encode(text)
    # Encode after an anchor and drop its tokens; an anchor that merges with the text is replaced by the next.
    for anchor in (*([after] if after else []), "\n", "a", ".", "0"):
        ids, offsets = tokenizer.encode(anchor + text)
        cut = int(np.searchsorted(offsets[:, 0], np.int32(len(anchor)), side="left"))
        if np.all(offsets[:cut, 1] <= len(anchor)):
            return ids[cut:], offsets[cut:] - len(anchor)
    return tokenizer.encode(text)


def encode_parts(tokenizer: ChatTokenizer, parts: Sequence[Part], *, continues: bool) -> dict[Part, Offset]:
    """Several parts at once; `continues`: they follow other text."""
    plain = [part for part in parts if not part.escaped]
    if continues and _adds_prefix(tokenizer):
        encoded = [encode_continuation(tokenizer, part.text) for part in plain]
    else:
        encoded = tokenizer.encode_many([part.text for part in plain])
    known = dict(zip(plain, encoded, strict=True))
    for part in parts:
        if part.escaped:
            known[part] = _encode_in_parts(tokenizer, part.text, [], list(part.escaped), continues=continues)
    return known


def _adds_prefix(tokenizer: ChatTokenizer) -> bool:
    """Does the tokenizer treat the start of a text specially?"""
    if "prefixes" not in tokenizer.learnt:
        after, alone = tokenizer.encode("\nhello")[0], tokenizer.encode("hello")[0]
        tokenizer.learnt["prefixes"] = list(after[-len(alone) :]) != list(alone)
    return bool(tokenizer.learnt["prefixes"])


def _is_inside(encoded: Encoded, edge: int) -> bool:
    """Does a token that is no control token cover text on both sides of the edge?"""
    number = int(np.searchsorted(encoded.reach, np.int32(edge), side="right"))
    return number < len(encoded.ids) and bool(encoded.starts[number] < edge) and not bool(encoded.is_control[number])


def _encode_in_parts(
    tokenizer: ChatTokenizer, text: str, cuts: list[int], escaped: list[tuple[int, int]], *, continues: bool = False
) -> Offset:
    # Cut at every edge; parts that start at an escaped place are encoded without control tokens.
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


def _encode_as_text(tokenizer: ChatTokenizer, text: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Encode with a tokenizer that knows no added tokens."""
    if "plain" not in tokenizer.learnt:
        described = json.loads(tokenizer.backend.to_str())
        described["added_tokens"] = []
        tokenizer.learnt["plain"] = Tokenizer.from_str(json.dumps(described))
    # After an anchor, as in `encode_continuation`: offsets of the text count from 1.
    encoding = tokenizer.learnt["plain"].encode("a" + text, add_special_tokens=False)
    pairs = [(i, o) for i, o in zip(encoding.ids, encoding.offsets, strict=True) if o[0] >= 1]
    if not pairs or pairs[0][1][0] != 1:  # the anchor merged with the text
        encoding = tokenizer.learnt["plain"].encode(text, add_special_tokens=False)
        pairs = [(i, (o[0] + 1, o[1] + 1)) for i, o in zip(encoding.ids, encoding.offsets, strict=True)]
    ids = np.array([pair[0] for pair in pairs], dtype=np.int32)
    return ids, np.array([pair[1] for pair in pairs], dtype=np.int32).reshape(-1, 2) - 1


def find_escaped_controls(
    tokenizer: ChatTokenizer, rendered: Rendered, regions: list[Region], controls: Controls
) -> list[tuple[int, int]]:
    """Where control tokens are meant as text: those that a message's own text spells out, outside what was generated.
    None are where they are kept; a Refusal where they are refused."""
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
