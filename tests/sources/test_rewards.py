"""Rewards: by name, by expression, from a file of scores."""

import pytest

from pairwright import ConfigError, Experience, SourceError
from pairwright.records.experience import EID
from pairwright.sources.redact import redact
from pairwright.sources.rewards import chosen_reward, parse_reward, read_scores


def exp(**fields):
    return Experience(
        **({"kind": "single_turn", "reward": 0.5, "reward_components": {"a": 1, "b": "0.25", "c/d": 3}} | fields)
    )


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", 1.0),
        ("c/d", 3.0),
        ("reward", 0.5),
        ("0.5*a + 2*b", 1.0),
        ("-(a - b) / 3", -0.25),
        ("missing", None),
        ("a + missing", None),
    ],
)
def test_a_reward_is_a_component_or_computed_from_them(expression, expected):
    assert chosen_reward(exp(), expression) == expected


def test_division_by_zero_is_no_score():
    value = chosen_reward(exp(), "a / (a - a)")
    assert value != value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "a.b()",
        "(a + 1).b",
        "a ** 9",
        "a[0]",
        "[a]",
        "'x'",
        "a if b else c",
        "a +",
        "a @ b",
        "f(a)",
        "a < b",
        "not a",
        "~a",
        "1" * 400,
        "-" * 500 + "a",
        " + ".join(["a"] * 5_000),
        "a" + ".b" * 5_000,
    ],
)
def test_anything_but_arithmetic_is_refused(expression):
    with pytest.raises(ConfigError, match="--reward"):
        parse_reward(expression)


def test_a_score_file_may_have_long_cells_and_cells_of_several_lines(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(f'id,transcript,reward\nx,"{"word " * 40_000}\nsecond line",0.5\n')
    assert read_scores(path).of(exp(info={"id": "x"}))[0].reward == 0.5


def test_scores_by_id_and_by_task_and_run(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("id,task,run,step,reward\nr-1,,,,0.9\n,t,2,,0.1\n,t,3,1,\n")
    scores = read_scores(path)
    assert scores.of(exp(info={"response_id": "r-1"}))[0].reward == 0.9
    assert scores.of(exp(eid=EID("b", "t", 2, 5)))[0].reward == 0.1
    assert scores.of(exp(eid=EID("b", "t", 3, 1)))[0].reward is None
    assert scores.of(exp(eid=EID("b", "t", 3, 0))) is None
    (tmp_path / "s.jsonl").write_text('{"id": "x", "score": true}\n\n{"id": "y", "rating": "3"}\n')
    scores = read_scores(tmp_path / "s.jsonl")
    assert (scores.num_rows, scores.of(exp(info={"id": "y"}))[0].reward) == (2, 3.0)


@pytest.mark.parametrize("text", ["id,value\n1,2\n", "reward\n1\n", '{"id": 1', '{"reward": 1}', "task,reward\nt,1\n"])
def test_bad_score_files_name_the_line(tmp_path, text):
    (tmp_path / "s").write_text(text)
    with pytest.raises(SourceError, match=r"s:\d"):
        read_scores(tmp_path / "s")


def test_a_missing_score_file_is_named(tmp_path):
    with pytest.raises(SourceError, match="cannot be read"):
        read_scores(tmp_path / "nope.csv")


SECRETS = {
    "openai_key": "sk-proj-" + "a1B2" * 10,
    "anthropic_key": "sk-ant-api03-" + "x" * 40,
    "github_token": "ghp_" + "a" * 36,
    "huggingface_token": "hf_" + "a" * 34,
    "aws_key_id": "AKIA" + "ABCD" * 4,
    "google_key": "AIza" + "a" * 35,
    "slack_token": "xoxb-1234567890-abc",
    "jwt": "eyJ" + "a" * 20 + ".eyJ" + "b" * 20 + "." + "c" * 20,
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    "nvidia_key": "nvapi-" + "a" * 60,
    "gitlab_token": "glpat-" + "a" * 20,
    "stripe_key": "sk_live_" + "a" * 24,
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_become_typed_placeholders_with_their_place(kind):
    value, found = redact({"messages": [{"content": f"key={SECRETS[kind]} end"}]})
    assert value == {"messages": [{"content": f"key=[REDACTED:{kind}] end"}]}
    assert [(finding.kind, finding.where) for finding in found] == [(kind, "messages[0].content")]


def test_a_bearer_token_goes_and_its_scheme_stays():
    value, _ = redact("Authorization: Bearer abcdefghij0123456789xyz")
    assert value == "Authorization: Bearer [REDACTED:bearer_token]"


def test_ordinary_text_is_left_alone():
    text = "risk-free task-specific sk-learn; ask-anything-you-like-here-please hf_hub AKIA eyJ password=hunter2"
    assert redact({"a": [text, 1, None]}) == ({"a": [text, 1, None]}, [])
