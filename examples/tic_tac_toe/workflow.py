"""The workflows: the prompts of the policy, and what is recorded.

self_play   one game of the policy against itself: at every turn it proposes several moves, each of which is scored
exam        a position: is the greedy move optimal?
"""

import random
from typing import Any

from game import EMPTY, Board, after, best_moves, board_text, is_over, legal_moves, parse_move, score_answer

MAX_OPENING = 5


async def self_play(task: Any, policy: Any, recorder: Any) -> None:
    """Play a game that begins with a few random moves, so that games differ. The first legal proposal is played."""
    board = random_opening(random.Random(task.seed))
    while not is_over(board):
        async with recorder.step(board_text(board)) as step:
            answers = await policy.complete(step.prompt)
            for text, answer in {answer.text: answer for answer in reversed(answers)}.items():  # without duplicates
                step.candidate(answer, score=score_answer(board, text))
        moves = [move for answer in answers if (move := parse_move(board, answer.text)) is not None]
        if not moves:
            return
        board = after(board, moves[0])


def random_opening(draw: random.Random) -> Board:
    while True:
        board = EMPTY
        for _ in range(draw.randrange(MAX_OPENING + 1)):
            board = after(board, draw.choice(legal_moves(board)))
            if is_over(board):
                break
        if not is_over(board):
            return board


async def exam(task: Any, policy: Any, recorder: Any) -> None:
    board = tuple(task["board"])
    prompt = board_text(board)
    (answer,) = await policy.complete(prompt, n=1, temperature=0.0)
    move = parse_move(board, answer.text)
    is_optimal = float(move in best_moves(board))
    components = {"optimal": is_optimal, "illegal": float(move is None)}
    recorder.trajectory(prompt, answer, reward=is_optimal, components=components)
