"""Turn credit in dumped batches, against an oracle that knows which calls of a made run were to fail."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ledger.small_flows import dumped, make_model, train_on
from pairwright.config import TokensConfig
from pairwright.config.sections import CreditConfig
from pairwright.errors import ConfigError, TableError
from pairwright.ledger import build_ledger
from pairwright.pairs.build import build_pairs
from pairwright.pairs.decisions.turn_votes import TurnVoteFile
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pair_table import read_pairs
from pairwright.pairs.turn_credit import count_credit, find_credit
from pairwright.records.experience import EID, Experience, Side, Source
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind
from pairwright.store.table import Table
from pairwright.tokens import EncodeOptions
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.stage.cache import CachedPairs
from pairwright.tokens.stage.stage import encode_source
from pairwright.tokens.tokenizer import ChatTokenizer

# What a tool answers -> whether the call counts as failed with the default kinds.
RESULTS = {
    "fine": False,
    "3 rows": False,
    "Error: no such user": True,  # a failure without a flag
    '{"error": "wrong tool"}': True,
    "flagged": True,  # says nothing, and has the flag
    "Exit code 1\n2 tests failed": False,  # a failure of a kind that does not count
    'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1': False,
}
FAMILIES = ("chatml with calls", "drops old reasoning")
MARK = re.compile(r"turn(\d+)")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    return {family: make_model(tmp_path_factory.mktemp("models") / family, family) for family in FAMILIES}


def made_run(
    draw: random.Random, task: int, number: int, *, thinks: bool = False
) -> tuple[Experience, dict[int, bool]]:
    """A run of calls, some of them parallel, some repeated with the same id, and which of its turns are to fail."""
    messages, fails = [], {}
    prompt = [Message("user", f"task {task}")]
    for step in range(draw.randint(2, 5)):
        calls, results = [], []
        for position in range(draw.choice([1, 1, 2, 3])):
            # Ids repeat between turns, as those of some servers do.
            call_id = draw.choice([f"call{step}-{position}", f"call{position}"])
            answer = draw.choice(list(RESULTS))
            calls.append(ToolCall("look", f'{{"q": {position}}}', call_id))
            extra = {"is_error": True} if answer == "flagged" else {}
            results.append(Message("tool", answer, tool_call_id=call_id, extra=extra))
        if draw.random() < 0.3:
            draw.shuffle(results)
        turn = len(prompt) + len(messages)
        fails[turn] = any(RESULTS[result.content] for result in results)
        reasoning = "so" if thinks and draw.random() < 0.5 else None
        messages += [Message("assistant", f"turn{turn}", reasoning=reasoning, tool_calls=tuple(calls)), *results]
        if draw.random() < 0.3:
            fails[len(prompt) + len(messages)] = False
            messages += [Message("assistant", f"turn{len(prompt) + len(messages)}"), Message("user", "go on")]
    turn = len(prompt) + len(messages)
    messages.append(Message("assistant", f"turn{turn}"))
    fails[turn] = False
    sites = error_sites([*prompt, *messages], [], result_error_kind)
    eid = EID(batch=0, task=task, run=number, suffix=f"{task}-{number}")
    run = Experience(eid=eid, kind="multi_turn", prompt=prompt, completion=messages, reward=float(number), errors=sites)
    return run, fails


def with_ids(run: Experience, model: Path) -> Experience:
    """Return the run with the ids of its render as recorded ids, if it is one sequence."""
    sequences = encode_experience(ChatTokenizer.from_folder(model), run)
    if len(sequences) > 1:
        return run
    start = int(sequences[0].mask.argmax())
    arrays = {"tokens": sequences[0].ids, "prompt_length": start, "action_mask": sequences[0].mask[start:]}
    return msgspec.structs.replace(run, **arrays)


def trained_turns(folder: Path, model: Path) -> dict[tuple[str, str, str], set[int]]:
    """(channel, id, side) -> the turns whose text is among the trained tokens of the dumped batches."""
    ready, found = ChatTokenizer.from_folder(model), {}
    for channel, name, side, trained in dumped(folder):
        turns = {int(number) for number in MARK.findall(ready.decode(trained))}
        found.setdefault((channel, name, side), set()).update(turns)
    return found


def check_runs(models, tmp_path: Path, seed: int) -> int:
    draw = random.Random(seed)
    family, is_recorded = draw.choice(FAMILIES), draw.random() < 0.5
    thinks = family == "drops old reasoning"
    made = [made_run(draw, task, number, thinks=thinks) for task in range(2) for number in range(2)]
    made = [(with_ids(run, models[family]) if is_recorded else run, fails) for run, fails in made]
    folder = train_on(
        tmp_path, models[family], [run for run, _ in made], channels={"grpo": 1.0, "kto": 1.0}, epochs=1, batch_size=8,
        tokens={"train_turns": "accepted"}, kto={"sft_loss_weight": 0.1},
    )  # fmt: skip
    found = trained_turns(folder, models[family])
    expected = {run.eid.uid: {turn for turn, has_failed in fails.items() if not has_failed} for run, fails in made}
    for channel in ("grpo", "kto"):
        assert {name: turns for (own, name, _), turns in found.items() if own == channel} == expected
    num_failed = sum(has_failed for _, fails in made for has_failed in fails.values())
    ledger = build_ledger("run", folder)
    assert ledger.problems == []
    for account in ledger.accounts:
        by_name = {fate.name: fate for fate in account.fates}
        assert account.turns == sum(len(fails) for _, fails in made)
        assert (by_name["masked by credit"].turns if num_failed else 0) == num_failed
        assert sum(fate.turns for fate in account.fates) == account.turns
        assert not num_failed or by_name["masked by credit"].tokens > 0
    return num_failed


@pytest.mark.parametrize("seed", range(4))
def test_failed_turns_of_runs_are_masked(models, tmp_path, seed):
    check_runs(models, tmp_path, seed)


@pytest.mark.slow
def test_failed_turns_of_many_runs_are_masked(models, tmp_path):
    assert sum(check_runs(models, tmp_path / str(seed), seed) for seed in range(100, 160)) > 100


@pytest.mark.parametrize(("seed", "rejected"), [(1, "all"), (2, "failed"), (3, "failed")])
def test_pairs_train_accepted_turns_of_chosen_sides_and_failed_or_all_turns_of_rejected_ones(
    models, tmp_path, seed, rejected
):
    draw, model = random.Random(seed), models["chatml with calls"]
    made = {}
    for task in range(4):
        for number in range(2):
            run, fails = made_run(draw, task, number)
            made[run.eid.uid] = (with_ids(run, model) if seed == 3 else run, fails)
    folder = train_on(
        tmp_path, model, [run for run, _ in made.values()], pairs={"strategy": "best-worst"}, epochs=1, batch_size=8,
        tokens={"train_turns": "accepted", "credit": {"rejected": rejected}}, dpo={"contrast": "all"},
    )  # fmt: skip
    found, num_refused = trained_turns(folder, model), 0
    for pair in read_pairs(tmp_path / "pairs"):
        good, bad = (made[eid.uid][1] for eid in (pair.chosen_eid, pair.rejected_eid))
        accepted = {turn for turn, has_failed in good.items() if not has_failed}
        wanted = {turn for turn, has_failed in bad.items() if has_failed or rejected == "all"}
        if not wanted:
            num_refused += 1
            assert ("dpo", pair.id, "chosen") not in found
            continue
        # Whole runs are compared: their common turns are not part of the prompt.
        assert found["dpo", pair.id, "chosen"] == accepted
        assert found["dpo", pair.id, "rejected"] == wanted
    ledger = build_ledger("run", folder)
    assert ledger.problems == []
    manifest = json.loads((folder / "tokens" / "pairs" / "manifest.json").read_text())
    assert manifest["refused"] == ({"not_selected": num_refused} if num_refused else {})
    assert manifest["credit"]["chosen"]["failed"] > 0


def test_sides_across_tasks_and_sides_of_preferences_have_the_credit_of_their_own_run(models, tmp_path):
    model = models["chatml with calls"]
    calls = lambda turn, answer: [  # noqa: E731
        Message("assistant", f"turn{turn}", tool_calls=(ToolCall("look", "{}", "a"),)),
        Message("tool", answer, tool_call_id="a"),
    ]
    history = [Message("user", "a"), Message("assistant", "before"), Message("user", "b")]
    longer = [*calls(3, "fine"), *calls(5, "Error: no"), Message("assistant", "turn7")]
    shorter = [*calls(1, "Error: no"), *calls(3, "fine"), Message("assistant", "turn5")]
    runs = []
    for number, (prompt, completion) in enumerate(((history, longer), ([Message("user", "c")], shorter))):
        sites = error_sites([*prompt, *completion], [], result_error_kind)
        eid = EID(batch=0, task=number, run=0, suffix=str(number))
        runs.append(Experience(eid=eid, kind="multi_turn", prompt=prompt, completion=completion, reward=1.0 - number, errors=sites))  # fmt: skip
    sides = [
        Side(messages=run.completion, reward=run.reward, errors=error_sites([*history, *run.completion], [], result_error_kind))
        for run in runs
    ]  # fmt: skip
    preference = Experience(
        eid=EID(batch=0, task=9, suffix="p"), kind="preference", prompt=history, chosen=sides[0], rejected=sides[1]
    )
    options = TokensConfig(tokenizer=str(model), train_turns="accepted", credit={"rejected": "failed"}, workers=1)
    ready = ChatTokenizer.from_folder(model)
    for name, records, pair_options in (
        ("across", runs, PairOptions(strategy="stratified", across_groups=True)),
        ("preference", [preference], PairOptions(strategy="imported")),
    ):
        with Table(tmp_path / name / "experience") as table:
            table.append(records)
        build_pairs([table], tmp_path / name / "pairs", pair_options)
        for source in ("pairs", *(["experience"] if name == "preference" else [])):
            encode_source(tmp_path / name / source, tmp_path / name / f"{source}-tokens", options, num_workers=1)
            (pair,) = CachedPairs(tmp_path / name / f"{source}-tokens")
            words = [MARK.findall(ready.decode(side.ids[side.mask])) for side in (pair.chosen, pair.rejected)]
            # Turns are named by their position in their own run.
            assert words == [["3", "7"], ["1"]]


def run_of_calls(*answers: str, prompt: Sequence[Message] = (), **fields) -> Experience:
    messages = list(prompt)
    for number, answer in enumerate(answers):
        call = ToolCall("look", "{}", f"c{number}")
        messages += [Message("assistant", f"turn{len(messages)}", tool_calls=(call,)), Message("tool", answer, tool_call_id=call.id)]  # fmt: skip
    sites = error_sites(messages, [], result_error_kind)
    completion = messages[len(prompt) :]
    return Experience(kind="multi_turn", prompt=prompt, completion=completion, errors=sites, **fields)


def verdicts(run: Experience, votes=None, **options) -> dict[int, tuple[str, float | None, str]]:
    found = find_credit(run, CreditConfig(**options), votes)
    return {turn: (one.verdict, one.value, one.source) for turn, one in found.items()}


def test_the_first_source_that_knows_decides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "def credit(run, turn):\n    return {0: None, 2: ('failed', 0.25), 4: 0.5, 6: True}[turn]\n"
        "def bad(run, turn):\n    return 'fine'\ndef broken(run, turn):\n    return 1 / 0\n"
    )
    run = run_of_calls("Error: no", "fine", "fine", "Exit code 1\nno")
    plain = {
        0: ("failed", None, "errors: tool_error"),
        2: ("ok", None, "errors: none"),
        4: ("ok", None, "errors: none"),
    }
    assert verdicts(run) == plain
    assert verdicts(run, kinds=("nonzero_exit",))[6] == ("failed", None, "errors: nonzero_exit")
    assert verdicts(run, function="own.py:credit") == {
        0: ("failed", None, "errors: tool_error"), 2: ("failed", 0.25, "function"), 4: ("ok", 0.5, "function"), 6: ("ok", None, "function"),
    }  # fmt: skip
    assert verdicts(run, {2: "ok", 0: "ok"}, function="own.py:credit")[2] == ("ok", 0.25, "votes")
    assert verdicts(run, {0: "ok"})[0] == ("ok", None, "votes")
    assert verdicts(run, {0: "unknown"})[0] == ("failed", None, "errors: tool_error")
    assert verdicts(run, {0: "ok"}, sources=("errors",)) == plain
    with pytest.raises(ConfigError, match="returned 'fine' for turn 0, expected None, True"):
        verdicts(run, function="own.py:bad")
    with pytest.raises(ConfigError, match=r"own\.py:broken failed: ZeroDivisionError"):
        verdicts(run, function="own.py:broken")


def test_recorded_step_rewards_are_values():
    steps = [Message("assistant", "a", extra={"turn_reward": 1}), Message("user", "b"), Message("assistant", "c", extra={"turn_reward": -0.5})]  # fmt: skip
    run = Experience(kind="multi_turn", completion=steps, reward=3.0)
    assert verdicts(run) == {0: ("ok", 1.0, "rewards"), 2: ("failed", -0.5, "rewards")}
    assert verdicts(run, threshold=1.0)[0] == ("unknown", 1.0, "rewards")
    plain = [Message("assistant", "a"), Message("user", "b"), Message("assistant", "c")]
    tokens = {"tokens": [1, 2, 3, 4, 5, 6], "prompt_length": 1, "action_mask": [1, 1, 0, 1, 1]}
    rewards = {"token_level_reward": [0.0, 2.0, -3.0, 0.0, 0.5]}
    by_token = Experience(kind="multi_turn", completion=plain, **tokens, **rewards)
    # The text between two turns is the environment's answer to the first.
    assert verdicts(by_token) == {0: ("failed", -1.0, "rewards"), 2: ("ok", 0.5, "rewards")}
    answer = {"kind": "single_turn", "completion": [Message("assistant", "a step")], "reward": -1.0}
    assert verdicts(Experience(**answer, source=Source("a.jsonl", format="prm800k"))) == {
        0: ("failed", -1.0, "rewards")
    }
    # The reward of a run is not a verdict on its only turn.
    assert verdicts(Experience(**answer)) == {0: ("unknown", -1.0, "rewards")}
    assert verdicts(Experience(kind="multi_turn", completion=plain, reward=1.0)) == {}


def test_votes_on_turns_count_and_change_what_is_encoded(models, tmp_path):
    model = models["chatml with calls"]
    run = run_of_calls("Error: no", "fine", eid=EID(batch=0, task=0, suffix="v"), prompt=(), reward=1.0)
    run = Experience(
        eid=run.eid, kind="multi_turn", prompt=[Message("user", "q")], completion=run.completion, reward=1.0
    )
    with Table(tmp_path / "experience") as table:
        table.append([run])
    options = TokensConfig(tokenizer=str(model), train_turns="accepted", workers=1)

    def masked() -> tuple[int, int]:
        manifest = encode_source(tmp_path / "experience", tmp_path / "tokens", options, num_workers=1)
        return manifest["turns_masked_by_credit"], manifest["from_cache"]

    assert masked() == (0, 0)
    assert masked() == (0, 1)
    votes = TurnVoteFile(tmp_path / "experience")
    votes.vote("ada", run.eid.uid, 1, "failed")
    assert masked() == (1, 0)
    assert count_credit(table, CreditConfig())["failed_by"] == {"votes": 1}
    votes.vote("bob", run.eid.uid, 1, "ok")  # one vote against one gives no verdict
    assert masked() == (0, 1)
    votes.vote("bob", run.eid.uid, 1, "skip")
    assert masked() == (1, 1)


def test_credit_is_off_unless_it_is_asked_for(models, tmp_path):
    run = run_of_calls("Error: no", "fine", prompt=[Message("user", "q")])
    assert TokensConfig().train_turns == "all"
    assert not TokensConfig().uses_credit
    ready = ChatTokenizer.from_folder(models["chatml with calls"])
    (sequence,) = encode_experience(ready, run)
    assert (sequence.report.credit, sequence.report.masked_by_credit) == ((), ())
    (masked,) = encode_experience(ready, run, EncodeOptions(train_turns="accepted"))
    assert masked.num_trained < sequence.num_trained
    assert [(one.turn, one.verdict) for one in masked.report.credit] == [(1, "failed"), (3, "ok")]


def test_pairs_whose_runs_are_gone_are_refused_with_the_way_out(models, tmp_path):
    model, draw = models["chatml with calls"], random.Random(1)
    with Table(tmp_path / "experience") as table:
        table.append([made_run(draw, 0, number)[0] for number in range(2)])
    build_pairs([table], tmp_path / "pairs", PairOptions(strategy="best-worst"))
    (tmp_path / "experience").rename(tmp_path / "moved")
    options = TokensConfig(tokenizer=str(model), train_turns="accepted", workers=1)
    with pytest.raises(TableError, match="name it with --experience DIR"):
        encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)
    named = options.model_copy(update={"experience": (str(tmp_path / "moved"),)})
    assert encode_source(tmp_path / "pairs", tmp_path / "tokens", named, num_workers=1)["encoded"] == 1


LABELS = Path(__file__).parent / "error_site_labels.csv"


def test_the_default_kinds_are_those_of_which_no_labelled_site_was_the_right_step():
    rows = [line.split(",") for line in LABELS.read_text().splitlines()[1:]]
    assert len(rows) == 100
    assert len({name for name, _, _ in rows}) == 100
    counts = Counter((kind, label) for _, kind, label in rows)
    for kind in {kind for _, kind, _ in rows} - {"file_not_found"}:  # one site: too few to say
        wrong, right, environment = (counts[kind, label] for label in ("wrong", "right", "environment"))
        is_chosen = right == 0 and wrong > environment
        assert (kind in CreditConfig().kinds) == is_chosen, kind


def test_a_failure_belongs_to_the_turn_that_made_the_call():
    first, second = (Message("assistant", name, tool_calls=(ToolCall("f", "{}", name),)) for name in "ab")
    late = [first, second, Message("tool", "Error: late", tool_call_id="a"), Message("tool", "fine", tool_call_id="b")]
    run = Experience(kind="multi_turn", completion=late, errors=[ErrorSite(2, "tool_error", call_id="a")])
    assert verdicts(run)[0][0] == "failed"
    assert verdicts(run)[1] == ("ok", None, "errors: none")
