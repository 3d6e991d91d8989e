"""Sampling of tokens. A draw depends on the seed, the choice and the position only, never on the rest of the batch.

No step sorts the vocabulary: top_k and top_p find the value at their boundary in a partial selection, and a token is
drawn by its cumulative probability, first over blocks of the vocabulary, then within one block.

Shapes: R rows of logits, G distributions (a row under some settings), C choices, V vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairwright.generate.devices import has_float64

_CHUNK = 2**24  # maximal number of values (distributions x vocabulary) in memory at once
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, the increment of splitmix64
_BLOCK = 256  # tokens of a block
_FIRST_CANDIDATES = 512  # candidates in the first partial selection for top_p


class Drawers(NamedTuple):
    """Arrays with one entry per choice: its row of the logits, its uniform number and its settings."""

    row: NDArray[np.int64]
    uniform: NDArray[np.float64]
    temperature: NDArray[np.float64]
    top_p: NDArray[np.float64]
    top_k: NDArray[np.int64]


def uniforms(
    seed: NDArray[np.uint64], choice: NDArray[np.int64], position: NDArray[np.int64] | int
) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one per choice: a hash of (seed, choice, position).

    >>> [float(u) for u in uniforms(np.array([7, 7, 8], np.uint64), np.array([0, 1, 0]), 0).round(3)]
    [0.747, 0.453, 0.891]
    """
    places = np.asarray(position, np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        mixed = _mix(seed + _GOLDEN)
        mixed = _mix(mixed ^ (choice.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        mixed = _mix(mixed + (places + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53  # the upper 53 bits, exact in float64


def draw(logits_RV: Any, drawers: Drawers) -> NDArray[np.int64]:
    import torch

    greedy = drawers.temperature == 0
    tokens = np.empty(len(drawers.row), np.int64)
    if greedy.any():
        tokens[greedy] = torch.argmax(logits_RV, dim=-1).cpu().numpy()[drawers.row[greedy]]
    (sampled,) = np.nonzero(~greedy)
    if not len(sampled):
        return tokens
    if not has_float64(logits_RV.device):  # probabilities are summed in float64
        logits_RV = logits_RV.float().cpu()
    # Choices of one row with the same settings share their distribution: it is computed once per group. `order` sorts
    # the sampled choices by settings, `changes` marks where a new group begins in that order, `which` numbers the
    # groups, and `first` has the position of each group's first member.
    settings = [values[sampled] for values in (drawers.row, drawers.temperature, drawers.top_p, drawers.top_k)]
    order = np.lexsort(settings[::-1])
    changes = np.zeros(len(sampled), bool)
    for values in settings:
        changes[1:] |= values[order][1:] != values[order][:-1]
    which = np.cumsum(changes)
    first = np.nonzero(np.concatenate([[True], changes[1:]]))[0]
    step = max(1, _CHUNK // logits_RV.shape[-1])
    for start in range(0, len(first), step):  # `step` groups at a time, to bound memory
        groups = first[start : start + step]
        inside = (which >= start) & (which < start + len(groups))
        row, temperature, top_p, top_k = (torch.from_numpy(values[order[groups]]) for values in settings)
        weights_GV = weigh_tokens(logits_RV[row.to(logits_RV.device)], temperature, top_p, top_k)
        members = sampled[order[inside]]
        tokens[members] = _pick(weights_GV, which[inside] - start, drawers.uniform[members])
    return tokens


def weigh_tokens(logits_GV: Any, temperature: Any, top_p: Any, top_k: Any) -> Any:
    """Unnormalised probabilities after temperature, top_k and top_p; the most likely token has 1, excluded ones 0."""
    import torch

    device = logits_GV.device
    scaled = logits_GV.float() / temperature.to(device, torch.float32)[:, None]
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp_()
    limited = (top_k > 0) & (top_k < weights.shape[-1])
    for rows in _parts(limited):
        limit = top_k[rows].to(device)
        best = weights[rows].topk(int(limit.max()), dim=-1).values
        boundary = best.gather(-1, limit[:, None] - 1)
        weights[rows] = _keep(weights[rows], boundary, limit)
    for rows in _parts(top_p < 1):
        weights[rows] = _cut_nucleus(weights[rows], top_p[rows].to(device))
    return weights


def _parts(is_limited: Any) -> Any:
    """Return the indices of True, in chunks, to bound memory."""
    import torch

    return torch.nonzero(is_limited)[:, 0].split(64) if bool(is_limited.any()) else ()


def _cut_nucleus(weights_GV: Any, top_p: Any) -> Any:
    """Keep each token if all more likely tokens sum to less than top_p; the most likely one is always kept."""
    import torch

    target = top_p.double()[:, None] * weights_GV.double().sum(-1, keepdim=True)
    size = min(_FIRST_CANDIDATES, weights_GV.shape[-1])
    while True:
        best = weights_GV.topk(size, dim=-1).values
        sums = best.double().cumsum(-1)
        if size == weights_GV.shape[-1] or bool((sums[:, -1:] >= target).all()):
            break
        size = min(size * 8, weights_GV.shape[-1])  # a flat distribution: select more
    count = (sums - best.double() < target).sum(-1).clamp(min=1)
    return _keep(weights_GV, best.gather(-1, count[:, None] - 1), torch.as_tensor(count))


def _keep(weights_GV: Any, boundary: Any, count: Any) -> Any:
    """Keep `count` tokens: those above the boundary value, then the first in the vocabulary with that value."""
    above, equal = weights_GV > boundary, weights_GV == boundary
    room = count[:, None] - above.sum(-1, keepdim=True)
    if bool((equal.sum(-1, keepdim=True) > room).any()):
        equal &= equal.cumsum(-1) <= room
    return weights_GV * (above | equal)


def _pick(weights_GV: Any, group_of: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the token at which the cumulative probability exceeds the uniform number, in vocabulary order."""
    import torch

    num_groups, size = weights_GV.shape
    width = min(_BLOCK, size)
    padded = torch.nn.functional.pad(weights_GV, (0, -size % width)).view(num_groups, -1, width)
    # (G, number of blocks) cumulative sums of blocks, in float64
    blocks = padded.sum(-1, dtype=torch.float64).cumsum(-1).cpu().numpy()
    total = blocks[group_of, -1]
    target = np.minimum(uniform * total, np.nextafter(total, 0.0))
    block = (blocks[group_of] <= target[:, None]).sum(-1)
    before = np.where(block > 0, blocks[group_of, np.maximum(block - 1, 0)], 0.0)
    inside = padded[torch.from_numpy(group_of).to(padded.device), torch.from_numpy(block).to(padded.device)]
    sums = inside.double().cumsum(-1).cpu().numpy()
    # rounding may leave the target at the block's end: then take its last token with a weight
    local = np.minimum(target - before, np.nextafter(sums[:, -1], 0.0))
    tokens: NDArray[np.int64] = block * width + (sums <= local[:, None]).sum(-1)
    return tokens


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every input bit affects every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed
