"""`pairwright tokens` as a user meets it, with a real tokenizer."""

import json

import pytest
from test_cli import run

from pairwright import EID, Experience, Message, Table


@pytest.fixture
def tokenizer(traces):
    return traces.parent / "tokenizers" / "qwen2_5"


@pytest.fixture
def folder(tmp_path):
    completion = [Message("assistant", "It is noon."), Message("user", "Sure?"), Message("assistant", "Yes.")]
    with Table(tmp_path / "experience") as table:
        table.append(
            [
                Experience(
                    eid=EID("b", "t", 0, 0, "s"),
                    kind="multi_turn",
                    prompt=[Message("user", "Time?")],
                    completion=completion,
                )
            ]
        )
    return table.path


def test_build_show_and_check(folder, tokenizer, tmp_path):
    done = run("tokens", folder, "--tokenizer", tokenizer, "-o", tmp_path / "tokens", "--json")
    manifest = json.loads(done.stdout)
    assert (done.returncode, manifest["exact"], manifest["sequences"]) == (0, 1, 1)
    assert "1 sequences of 1 items" in done.stderr
    shown = run("tokens", "show", tmp_path / "tokens", "--tokenizer", tokenizer)
    assert "It is noon.<|im_end|>" in shown.stdout
    page = tmp_path / "page.html"
    assert run("tokens", "show", tmp_path / "tokens", "--tokenizer", tokenizer, "--html", page).returncode == 0
    assert "<html" in page.read_text()
    assert "http" not in page.read_text().replace("http-equiv", "")
    checked = run("tokens", "check", "--tokenizer", tokenizer, "--json")
    assert json.loads(checked.stdout)["is_supported"] is True


def test_mistakes_are_one_line(folder, tokenizer, tmp_path):
    for words, message in (
        (("tokens", folder, "--tokenizer", tmp_path, "-o", tmp_path / "x"), "no tokenizer.json"),
        (("tokens", tmp_path / "nope", "--tokenizer", tokenizer, "-o", tmp_path / "x"), "neither an experience table"),
        (("tokens", "show", tmp_path, "--tokenizer", tokenizer), "no sequence"),
    ):
        done = run(*words)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert message in done.stderr
