"""Group sequences: into batches of similar length, and into packed rows."""

from collections.abc import Sequence as Items

from pairwright.errors import ConfigError


def buckets(
    lengths: Items[int],
    *,
    max_tokens: int,
    max_rows: int | None = None,
    is_padded: bool = True,
    allow_longer: bool = False,
) -> list[list[int]]:
    """Group positions of sequences into batches of similar length, shortest first.

    max_tokens    tokens per batch: rows times the longest if `is_padded`, else the sum of lengths
    max_rows      sequences per batch
    allow_longer  a sequence longer than `max_tokens` becomes a separate batch instead of an error

    >>> buckets([5, 100, 6, 98, 4], max_tokens=200)
    [[4, 0, 2], [3, 1]]
    >>> buckets([10, 300, 20, 170, 5], max_tokens=200, is_padded=False, allow_longer=True)
    [[4, 0, 2], [3], [1]]
    """
    result: list[list[int]] = []
    total = 0  # tokens of the last batch, without padding
    for position in sorted(range(len(lengths)), key=lambda number: (lengths[number], number)):
        size = lengths[position]
        if size > max_tokens and not allow_longer:
            raise ConfigError(f"max_tokens: {max_tokens} is less than a sequence of {size}; truncate first")
        last = result[-1] if result else []
        # Lengths ascend, so this sequence is the longest of its batch and sets the width of all its rows.
        with_it = (len(last) + 1) * size if is_padded else total + size
        if last and with_it <= max_tokens and len(last) != max_rows:
            last.append(position)
            total += size
        else:
            result.append([position])
            total = size
    return result


def packing(lengths: Items[int], row_length: int) -> list[list[int]]:
    """Group positions of sequences that share a row: longest first, each into the fullest row with room for it.

    >>> packing([5, 3, 4, 2], 8)
    [[0, 1], [2, 3]]
    """
    rows: list[list[int]] = []
    room: list[int] = []  # free tokens of each row
    for position in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        size = lengths[position]
        if size > row_length:
            raise ConfigError(f"row_length: {row_length} is less than a sequence of {size}; truncate first")
        fitting = [(left, number) for number, left in enumerate(room) if left >= size]
        if fitting:
            # Best fit: tuples compare by free room, so `min` takes the fullest row.
            number = min(fitting)[1]
            rows[number].append(position)
            room[number] -= size
        else:
            rows.append([position])
            room.append(row_length - size)
    return rows
