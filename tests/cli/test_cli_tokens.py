"""`pairwright tokens` as a user meets it, with a real tokenizer."""

import json

import pytest
from test_cli import run

from pairwright import EID, ErrorSite, Experience, Message, Table, ToolCall


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
    checked = run("tokens", "check", "--tokenizer", tokenizer, "--json")
    assert json.loads(checked.stdout)["is_supported"] is True


def test_headings_of_sequences_are_whole_in_a_pipe(folder, tokenizer):
    shown = run("tokens", "show", folder, "--tokenizer", tokenizer, COLUMNS="40")
    (heading,) = (line for line in shown.stdout.splitlines() if line.startswith("── "))
    assert heading.endswith("8 trained, 2 turns, stop <|im_end|>")


def test_check_says_in_words_what_a_template_without_tools_does_with_them_and_the_way_out(traces):
    done = run("tokens", "check", "--tokenizer", traces.parent / "tokenizers" / "phi3_mini")
    assert (
        "phi3_mini\tcalls of tools: left out of the text\t-\t-\t--tools-as-text hermes writes them as text"
        in done.stdout
    )
    assert done.stderr == "phi3_mini: supported, 3 of 12 conversations exact, tools not supported\n"
    assert (
        "what is trained is in brackets:\n\n<|user|>Which word?<|end|><|assistant|>[It is a word.<|end|>]"
        in done.stdout
    )


def test_mistakes_are_one_line(folder, tokenizer, tmp_path):
    for words, message in (
        (("tokens", folder, "--tokenizer", tmp_path, "-o", tmp_path / "x"), "no tokenizer.json"),
        (("tokens", tmp_path / "nope", "--tokenizer", tokenizer, "-o", tmp_path / "x"), "neither an experience table"),
        (("tokens", "show", tmp_path, "--tokenizer", tokenizer), "expected cached sequences, an experience table"),
    ):
        done = run(*words)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert message in done.stderr


def test_a_configuration_says_what_the_command_line_does_not(folder, tokenizer, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"name: first\ntokens: {{tokenizer: {tokenizer}, max_length: 4, truncation: drop, workers: 1}}\n")
    done = run("tokens", folder, "--config", config, "-o", tmp_path / "tokens", "--json")
    manifest = json.loads(done.stdout)
    assert (done.returncode, manifest["refused"]) == (1, {"too_long": 1})  # nothing is encoded
    assert manifest["options"]["truncation"] == "drop"
    words = ("--max-length", 1000, "--control-tokens", "refuse", "--verify", "all", "--no-require-stop")
    manifest = json.loads(run("tokens", folder, "--config", config, "-o", tmp_path / "tokens", *words, "--json").stdout)
    assert (manifest["exact"], manifest["options"]["max_length"]) == (1, 1000)
    assert (manifest["options"]["verify"], manifest["options"]["require_stop"]) == ("all", False)
    done = run("tokens", folder)
    assert (done.returncode, "expected a source, --tokenizer DIR and -o DIR" in done.stderr) == (3, True)


def test_show_takes_tables_files_and_hints(tokenizer, tmp_path):
    call = ToolCall("look", "{}", "call00000")
    completion = [
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "no such word", tool_call_id="call00000"),
        Message("assistant", "I see."),
    ]
    site = ErrorSite(index=2, kind="not_found", tool="look")
    made = {"kind": "multi_turn", "prompt": [Message("user", "Time?")], "completion": completion, "errors": [site]}
    with Table(tmp_path / "experience") as table:
        table.append([Experience(**made)])
    shown = json.loads(run("tokens", "show", table.path, "--tokenizer", tokenizer, "--json").stdout)
    assert "".join(token["text"] for token in shown[0]["tokens"] if token["trained"]).endswith("I see.<|im_end|>")
    assert {token["is"] for token in shown[0]["tokens"]} >= {"template", "user", "tool", "call", "generated", "stop"}
    hinted = run("tokens", "show", table.path, "--tokenizer", tokenizer, "--hints", "--json")
    student, teacher = json.loads(hinted.stdout)
    assert "Hint: What look" in "".join(token["text"] for token in teacher["tokens"] if token["is"] == "hint")
    assert not any(token["is"] == "hint" for token in student["tokens"])
    (tmp_path / "own.py").write_text("def hint(messages, site): return 'own ' + site.kind\n")
    (tmp_path / "config.yaml").write_text("train: {sdpo: {hint: own.py:hint}}\n")
    words = ("--hints", "--config", tmp_path / "config.yaml", "--json")
    _, teacher = json.loads(run("tokens", "show", table.path, "--tokenizer", tokenizer, *words).stdout)
    assert "Hint: own not_found" in "".join(token["text"] for token in teacher["tokens"] if token["is"] == "hint")
    file = tmp_path / "chat.jsonl"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    file.write_text(json.dumps({"messages": chat}) + "\n" + json.dumps(chat) + "\n")
    done = run("tokens", "show", file, "--tokenizer", tokenizer)
    assert (done.returncode, done.stdout.count("hello<|im_end|>")) == (0, 2)
    file.write_text("{}")
    done = run("tokens", "show", file, "--tokenizer", tokenizer)
    assert (done.returncode, "expected a list of messages" in done.stderr) == (1, True)


def test_calls_that_a_template_does_not_render_are_refused_unless_allowed(tokenizer, tmp_path):
    call = ToolCall("look", '{"word": "zebra"}', "call00000")
    completion = [Message("assistant", "", tool_calls=(call,)), Message("tool", "x", tool_call_id="call00000")]
    runs = [
        Experience(kind="multi_turn", prompt=[Message("user", "Time?")], completion=[*completion, last])
        for last in (Message("assistant", "Noon."), Message("assistant", "One."))
    ]
    plain = Experience(kind="single_turn", prompt=runs[0].messages[:3], completion=[Message("assistant", "Two.")])
    with Table(tmp_path / "experience") as table:
        table.append([*runs, plain])
    words = (
        "tokens",
        table.path,
        "--tokenizer",
        tokenizer.parent / "smollm2",
        "--workers",
        1,
        "-o",
        tmp_path / "tokens",
    )
    done = run(*words)
    assert done.returncode == 0
    assert "refused: dropped\t2" in done.stdout
    assert "warning: 2 of 3 items are refused: dropped 2" in done.stderr
    assert "warning: 1 of 1 sequences lack text, calls or tool schemas of the prompt" in done.stderr
    shown = run("tokens", "show", tmp_path / "tokens", "--tokenizer", tokenizer.parent / "smollm2")
    assert shown.stderr.count("refused: message 1: dropped: the template does not render tool_calls") == 2
    assert "not rendered (prompt): tool_calls of message 1" in shown.stdout
    done = run(*words, "--allow-dropped", "--json")
    manifest = json.loads(done.stdout)
    assert (done.returncode, manifest["encoded"], manifest["exact"]) == (0, 3, 1)
    shown = run("tokens", "show", table.path, "--tokenizer", tokenizer.parent / "smollm2", "--allow-dropped")
    assert "not rendered (generated): tool_calls of message 1" in shown.stdout


def test_show_and_check_take_the_variables_of_a_template(folder, traces):
    qwen3 = traces.parent / "tokenizers" / "qwen3"
    off = ("--chat-template-kwargs", '{"enable_thinking": false}')
    shown = run("tokens", "show", folder, "--tokenizer", qwen3, *off)
    assert shown.returncode == 0
    assert "</think>" in shown.stdout
    unknown = run("tokens", "check", "--tokenizer", qwen3, "--chat-template-kwargs", '{"thinking": false}')
    assert unknown.returncode != 0
    assert "reads no variable 'thinking'; it reads enable_thinking" in unknown.stderr
