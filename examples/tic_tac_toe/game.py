"""Tic-tac-toe as text, and its exact value.

A board is nine numbers from the view of the player who moves next: 0 empty, 1 mine, 2 theirs. The model reads it as
nine cells, `5x` mine, `5o` theirs, `5.` empty, and answers with the number of a cell:

    1. 2x 3o
    4. 5x 6.        ->  8
    7. 8. 9o

The score of a move is its value under perfect play. An immediate win is 1, and each further turn subtracts 0.1; a draw
is 0; a loss is the negated score of the winner; an answer that is not a legal move is -1.5. So a faster win is better
than a slower one, and a slower loss than a faster one, by at least 0.2.
"""

from functools import cache

Board = tuple[int, ...]
EMPTY: Board = (0,) * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
ILLEGAL = -1.5
_WON_BEFORE = -11  # in tenths: the player who moved last has three in a row


def legal_moves(board: Board) -> list[int]:
    return [cell for cell in range(9) if board[cell] == 0]


def has_lost(board: Board) -> bool:
    """Return whether the player who moved last has three in a row."""
    return any(board[a] == board[b] == board[c] == 2 for a, b, c in LINES)


def is_over(board: Board) -> bool:
    return has_lost(board) or 0 not in board


def after(board: Board, move: int) -> Board:
    """Return the board after a move, from the view of the other player."""
    mine = (*board[:move], 1, *board[move + 1 :])
    return tuple((0, 2, 1)[cell] for cell in mine)


@cache
def _tenths(board: Board) -> int:
    """Return the value of a board under perfect play for the player to move, in tenths; -11 if the opponent has won."""
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
        found[move] = value - (value > 0) + (value < 0)  # one turn later, wins and losses are one tenth smaller
    return found


def move_scores(board: Board) -> dict[int, float]:
    """Return the score of every legal move."""
    return {move: tenths / 10 for move, tenths in _move_tenths(board).items()}


def best_moves(board: Board) -> list[int]:
    scores = _move_tenths(board)
    return [move for move, tenths in scores.items() if tenths == max(scores.values())]


def reachable_boards() -> list[Board]:
    """Return all 4,520 boards on which a player may have to move, in a fixed order."""
    seen: set[Board] = set()
    waiting = [EMPTY]
    while waiting:
        board = waiting.pop()
        if board not in seen and not is_over(board):
            seen.add(board)
            waiting += [after(board, move) for move in legal_moves(board)]
    return sorted(seen)


def board_text(board: Board) -> str:
    """Format a board as the prompt of the player to move."""
    cells = [f"{number}{'.xo'[owner]}" for number, owner in enumerate(board, 1)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def parse_move(board: Board, text: str) -> int | None:
    """Parse the move of an answer; None if it is not legal."""
    answer = text.strip()
    move = int(answer) - 1 if len(answer) == 1 and answer in "123456789" else -1
    return move if move in legal_moves(board) else None


def score_answer(board: Board, text: str) -> float:
    move = parse_move(board, text)
    return ILLEGAL if move is None else move_scores(board)[move]
