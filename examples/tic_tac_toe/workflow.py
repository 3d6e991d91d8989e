"""What the policy is asked, and what is recorded.

self_play   one game of the policy against itself: at every turn it proposes several moves, each is scored
exam        one task of the exam: a position (is the greedy move optimal?), or a game against a player
"""

import random
from typing import Any

from game import EMPTY, Board, after, best_moves, board_text, has_lost, is_over, legal_moves, parse_move, score_answer

MAX_OPENING = 5


async def self_play(task: Any, policy: Any, recorder: Any) -> None:
    """A game that begins with a few random moves, so that games differ; the first legal proposal is played."""
    board = random_opening(random.Random(task.seed))
    while not is_over(board):
        async with recorder.step(board_text(board)) as step:
            answers = await policy.complete(step.prompt)
            for text, answer in {answer.text: answer for answer in reversed(answers)}.items():  # each text once
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
    if task["kind"] == "position":
        await _position(task, policy, recorder)
    else:
        await _game(task, policy, recorder)


async def _position(task: Any, policy: Any, recorder: Any) -> None:
    board = tuple(task["board"])
    prompt = board_text(board)
    (answer,) = await policy.complete(prompt, n=1, temperature=0.0)
    move = parse_move(board, answer.text)
    is_optimal = float(move in best_moves(board))
    components = {"optimal": is_optimal, "illegal": float(move is None)}
    recorder.trajectory(prompt, answer, reward=is_optimal, components=components)


async def _game(task: Any, policy: Any, recorder: Any) -> None:
    """A greedy game; the opponent draws from the task's seed, so that both models meet the same one."""
    draw = random.Random(task.seed)
    board, is_ours = EMPTY, bool(task["starts"])
    prompt, answer, result = board_text(board), "", 0.0
    while not is_over(board):
        if is_ours:
            prompt = board_text(board)
            (answer,) = await policy.complete(prompt, n=1, temperature=0.0)
            move = parse_move(board, answer.text)
            if move is None:  # an illegal move loses the game
                result = -1.0
                break
        else:
            move = draw.choice(best_moves(board) if task["kind"] == "perfect" else legal_moves(board))
        board, is_ours = after(board, move), not is_ours
    if has_lost(board):
        result = -1.0 if is_ours else 1.0
    kind = task["kind"]
    components = {f"{kind}_score": (result + 1) / 2, f"{kind}_lost": float(result < 0)}
    recorder.trajectory(prompt, answer, reward=(result + 1) / 2, components=components)
