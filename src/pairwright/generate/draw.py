"""Drawing tokens so that a draw depends on its own seed alone.

Each draw has one uniform number, a hash of (seed, choice, position), and takes the token at which the cumulative
probability passes it. Batching, order and the other requests have no part in it.

Shapes: R rows of logits (distinct prefixes), V tokens of the vocabulary, C choices (several may share a row).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_CHUNK = 2**24  # values of C x V that are looked at in one piece
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Drawers(NamedTuple):
    """One entry a choice: its row, its uniform number and its settings."""

    row: NDArray[np.int64]
    uniform: NDArray[np.float64]
    temperature: NDArray[np.float64]
    top_p: NDArray[np.float64]
    top_k: NDArray[np.int64]


def uniforms(seed: NDArray[np.uint64], choice: NDArray[np.int64], position: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), one a choice.

    >>> [float(u) for u in uniforms(np.array([7, 7, 8], np.uint64), np.array([0, 1, 0]), 0).round(3)]
    [0.829, 0.573, 0.033]
    """
    with np.errstate(over="ignore"):
        mixed = _mix(seed + _GOLDEN)
        mixed = _mix(mixed ^ (choice.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        mixed = _mix(mixed + np.uint64(position + 1) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(logits_RV: Any, drawers: Drawers) -> NDArray[np.int64]:
    """A token for each choice."""
    import torch

    greedy = drawers.temperature == 0
    tokens = np.empty(len(drawers.row), np.int64)
    if greedy.any():
        tokens[greedy] = torch.argmax(logits_RV, dim=-1).cpu().numpy()[drawers.row[greedy]]
    (drawn,) = np.nonzero(~greedy)
    if not len(drawn):
        return tokens
    # choices of one row with the same settings share their distribution
    settings = [values[drawn] for values in (drawers.row, drawers.temperature, drawers.top_p, drawers.top_k)]
    order = np.lexsort(settings[::-1])
    changes = np.zeros(len(drawn), bool)
    for values in settings:
        changes[1:] |= values[order][1:] != values[order][:-1]
    which = np.cumsum(changes)
    first = np.nonzero(np.concatenate([[True], changes[1:]]))[0]
    step = max(1, _CHUNK // logits_RV.shape[-1])
    for start in range(0, len(first), step):
        groups = first[start : start + step]
        members = order[(which >= start) & (which < start + len(groups))]
        group_of = which[(which >= start) & (which < start + len(groups))] - start
        row, temperature, top_p, top_k = (torch.from_numpy(values[order[groups]]) for values in settings)
        cdf_GV = _cumulative(logits_RV[row.to(logits_RV.device)], temperature, top_p, top_k)
        tokens[drawn[members]] = _pick(cdf_GV, group_of, drawers.uniform[drawn[members]], step)
    return tokens


def _cumulative(logits_GV: Any, temperature: Any, top_p: Any, top_k: Any) -> Any:
    """Cumulative probabilities in float64, after temperature, top_k and top_p; what is cut off adds nothing."""
    import torch

    device = logits_GV.device
    scaled = logits_GV.double() / temperature.to(device)[:, None]
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        values, places = scaled.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(scaled.shape[-1], device=device)[None, :]
        limit = torch.where(top_k > 0, top_k, scaled.shape[-1]).to(device)[:, None]
        values = values.masked_fill(rank >= limit, -torch.inf)
        probs = values.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs
        values = values.masked_fill((before >= top_p.to(device)[:, None]) & (rank > 0), -torch.inf)
        scaled = torch.full_like(scaled, -torch.inf).scatter(-1, places, values)
    return scaled.softmax(dim=-1).cumsum(dim=-1)


def _pick(cdf_GV: Any, group_of: NDArray[np.int64], uniform: NDArray[np.float64], step: int) -> NDArray[np.int64]:
    import torch

    device, picked = cdf_GV.device, []
    for start in range(0, len(group_of), step):
        cdf_CV = cdf_GV[torch.from_numpy(group_of[start : start + step]).to(device)]
        # below the total, whatever rounding made of it, so that a token with probability is found
        target = torch.from_numpy(uniform[start : start + step]).to(device)[:, None] * cdf_CV[:, -1:]
        target = torch.minimum(target, torch.nextafter(cdf_CV[:, -1:], torch.zeros_like(target)))
        picked.append(torch.searchsorted(cdf_CV, target, right=True)[:, 0].cpu().numpy())
    found: NDArray[np.int64] = np.concatenate(picked)
    return found


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed
