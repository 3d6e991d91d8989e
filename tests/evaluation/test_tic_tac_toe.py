"""The example: a game whose exact values are known, its tokenizer, and two models on its exam through collect/."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pairwright import Table
from pairwright.config import load_config
from pairwright.errors import ConfigError
from pairwright.evaluation.held_out_runs import evaluate_models, holdout_config

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tic_tac_toe"
sys.path.insert(0, str(EXAMPLE))

import game  # noqa: E402
import prepare  # noqa: E402
import workflow  # noqa: E402


def board(text):
    """A board from nine characters: x moves next."""
    return tuple(".xo".index(cell) for cell in text.replace("/", ""))


def test_every_position_is_found_once():
    boards = game.reachable_boards()
    assert (len(boards), len(set(boards))) == (4520, 4520)  # 5,478 reachable positions less 958 in which a game is over


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (".../.../...", dict.fromkeys(range(9), 0.0)),  # perfect play is a draw, wherever it begins
        ("xx./oo./...", {2: 1.0, 5: 0.0, 6: -0.9, 7: -0.9, 8: -0.9}),  # win at once; block and draw; or lose in two
        ("oo./x../x..", {2: -0.7, 4: -0.9, 5: -0.9, 7: -0.9, 8: -0.9}),  # blocking holds until a fork: four turns
    ],
)
def test_the_score_of_a_move_is_its_value_under_perfect_play(text, scores):
    assert game.move_scores(board(text)) == scores
    assert game.best_moves(board(text)) == [move for move, score in scores.items() if score == max(scores.values())]


def test_scores_differ_by_at_least_the_gap_of_the_pairs():
    for position in random.Random(0).sample(game.reachable_boards(), 300):
        values = sorted({round(10 * value) for value in game.move_scores(position).values()})
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(values))
        assert -9 <= values[0] <= values[-1] <= 10


def test_an_answer_is_a_legal_move_or_illegal():
    position = board("x.o/.../...")
    assert game.board_text(position) == "1x 2. 3o\n4. 5. 6.\n7. 8. 9."
    assert [game.parse_move(position, text) for text in ("2", " 9 ", "1", "0", "10", "", "two", "²")] == [
        1,
        8,
        None,
        None,
        None,
        None,
        None,
        None,
    ]
    assert game.score_answer(position, "1") == game.ILLEGAL


def test_openings_are_positions_in_which_a_game_goes_on():
    draw = random.Random(1)
    openings = [workflow.random_opening(draw) for _ in range(200)]
    assert not any(game.is_over(opening) for opening in openings)
    assert len(set(openings)) > 100


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model that was shown nothing, and one that was shown a little."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "BATCH_SIZE", 32)
        for name, num_steps in (("old", 1), ("new", 60)):
            patch.setattr(prepare, "NUM_STEPS", num_steps)
            prepare.make_base(folder / name, seed=0)
    (folder / "exam.jsonl").write_text("".join(json.dumps(task) + "\n" for task in prepare.exam_tasks()[::113]))
    return folder


@pytest.fixture
def config(models):
    overrides = [
        ("evaluate.dataset", str(models / "exam.jsonl")),
        ("policy.model", str(models / "old")),
        ("evaluate.gate", "null"),
    ]
    return load_config(EXAMPLE / "config.yaml", overrides=overrides, environment={})


def test_two_models_play_the_same_exam_with_the_same_seeds(models, config, tmp_path):
    found, played = evaluate_models(
        config, before=str(models / "old"), after=str(models / "new"), output=tmp_path, base=EXAMPLE
    )
    by_name = {one.metric.name: one for one in found.comparisons}
    assert [collected.status.num_done for collected in played] == [40, 40]
    assert by_name["optimal"].num_tasks == by_name["illegal"].num_tasks == 40
    assert by_name["illegal"].after.mean < by_name["illegal"].before.mean  # the rules are learnt first
    same, _ = evaluate_models(
        config, before=str(models / "new"), after=str(models / "new"), output=tmp_path / "same", base=EXAMPLE
    )
    assert all(one.wins == one.losses == 0 for one in same.comparisons)


def test_a_model_that_plays_legally_proposes_candidates_that_are_scored(models, config, tmp_path):
    from pairwright.collection import collect

    small = config.model_copy(
        update={
            "collect": config.collect.model_copy(update={"num_tasks": 6}),
            "policy": config.policy.model_copy(update={"model": str(models / "new")}),
        }
    )
    collect(small, output=tmp_path, base=EXAMPLE)
    rows = list(Table(tmp_path / "experience").records())
    assert {row.eid.task for row in rows} <= set(range(6))
    for row in rows:
        position = tuple(".xo".index(cell[1]) for cell in row.prompt[0].text.split())
        assert row.reward == game.score_answer(position, row.completion[0].text)
        assert row.prompt_length == 12
        assert len(row.tokens) in (13, 14)  # a move and the end, or the end alone


def test_held_out_tasks_must_be_named(config):
    with pytest.raises(ConfigError, match=r"evaluate\.dataset"):
        holdout_config(
            config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"dataset": None})}), "x"
        )


def test_a_folder_is_loaded_here_and_a_name_is_asked_for_at_the_endpoint(config, tmp_path):
    remote = config.model_copy(
        update={"policy": config.policy.model_copy(update={"base_url": "http://127.0.0.1:1/v1"})}
    )
    assert holdout_config(remote, "old-model").policy.base_url == "http://127.0.0.1:1/v1"
    assert holdout_config(remote, str(tmp_path)).policy.base_url is None


def test_an_exam_is_in_float32_whatever_the_collection_was_sampled_in(config):
    quick = config.model_copy(update={"policy": config.policy.model_copy(update={"dtype": "bfloat16"})})
    assert holdout_config(quick, "x").policy.dtype == "float32"
    asked = quick.model_copy(update={"evaluate": quick.evaluate.model_copy(update={"dtype": "auto"})})
    assert holdout_config(asked, "x").policy.dtype == "auto"


@pytest.mark.slow
def test_the_command_compares_two_models(models, tmp_path):
    words = [
        "evaluate",
        "run",
        EXAMPLE / "config.yaml",
        "--before",
        models / "old",
        "--after",
        models / "new",
        "-o",
        tmp_path / "run",
    ]
    words += [
        "--set",
        f"evaluate.dataset={models / 'exam.jsonl'}",
        "--set",
        "evaluate.metrics=[{name: illegal, better: lower}]",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", *map(str, words)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"][0]["tasks"] == 40
    assert (tmp_path / "run" / "evaluation.json").is_file()
