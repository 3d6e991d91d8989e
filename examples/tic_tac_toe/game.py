"""Tic-tac-toe as text, and its exact value.

A board is nine numbers seen by whoever moves next: 0 empty, 1 mine, 2 theirs. The model reads it as nine cells, `5x`
mine, `5o` theirs, `5.` empty, and answers with the number of a cell:

    1. 2x 3o
    4. 5x 6.        ->  8
    7. 8. 9o

The score of a move is what perfect play makes of it: a win at once is 1, each later turn costs a tenth, a draw is 0, a
loss is the winner's score with the sign turned, an answer that is no legal move is -1.5. So a faster win beats a slower
one and a slower loss a faster one, by 0.2 at least.
"""

from functools import cache

Board = tuple[int, ...]
EMPTY: Board = (0,) * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
ILLEGAL = -1.5
_WON_BEFORE = -11  # tenths: the player who moved last has three in a row


def legal_moves(board: Board) -> list[int]:
    return [cell for cell in range(9) if board[cell] == 0]


def has_lost(board: Board) -> bool:
    """Whether the one who moved last has three in a row."""
    return any(board[a] == board[b] == board[c] == 2 for a, b, c in LINES)


def is_over(board: Board) -> bool:
    return has_lost(board) or 0 not in board


def after(board: Board, move: int) -> Board:
    """The board after a move, as the other player sees it."""
    mine = (*board[:move], 1, *board[move + 1 :])
    return tuple((0, 2, 1)[cell] for cell in mine)


@cache
def _tenths(board: Board) -> int:
    """What perfect play gives the one who moves, in tenths; ±11 would be a win before this move."""
    if has_lost(board):
        return _WON_BEFORE
    if 0 not in board:
        return 0
    return max(_move_tenths(board).values())


@cache
def _move_tenths(board: Board) -> dict[int, int]:
    found = {}
    for move in legal_moves(board):
        value = -_tenths(after(board, move))
        found[move] = value - (value > 0) + (value < 0)  # one turn later: a win is worth less, a loss hurts less
    return found


def move_scores(board: Board) -> dict[int, float]:
    """The score of every legal move."""
    return {move: tenths / 10 for move, tenths in _move_tenths(board).items()}


def best_moves(board: Board) -> list[int]:
    scores = _move_tenths(board)
    return [move for move, tenths in scores.items() if tenths == max(scores.values())]


def reachable_boards() -> list[Board]:
    """Every board on which somebody may have to move: 4,520, in a fixed order."""
    seen: set[Board] = set()
    waiting = [EMPTY]
    while waiting:
        board = waiting.pop()
        if board not in seen and not is_over(board):
            seen.add(board)
            waiting += [after(board, move) for move in legal_moves(board)]
    return sorted(seen)


def board_text(board: Board) -> str:
    """The prompt of the one who moves."""
    cells = [f"{number}{'.xo'[owner]}" for number, owner in enumerate(board, 1)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def parse_move(board: Board, text: str) -> int | None:
    """The move that an answer names, or None where it is no legal one."""
    answer = text.strip()
    move = int(answer) - 1 if len(answer) == 1 and answer in "123456789" else -1
    return move if move in legal_moves(board) else None


def score_answer(board: Board, text: str) -> float:
    move = parse_move(board, text)
    return ILLEGAL if move is None else move_scores(board)[move]
