"""Hints: which sites get one, and a teacher that continues the same ids."""

import ast
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from token_families import FAMILIES, small_tokenizer

import pairwright.sources
from collection.upstream import serving
from pairwright.config import load_config
from pairwright.config.train_config import DistillConfig
from pairwright.errors import PairwrightError
from pairwright.records.messages import ERROR_KINDS, ErrorSite, Message, ToolCall
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind
from pairwright.tokens.hints import HINTS, HintCounts, Hinter, find_hints
from pairwright.tokens.recorded import RecordedTurn
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.teacher_sequences import Distillation, encode_distillations

CALL = ToolCall("look", '{"word": "zebra"}', "call00000")
CHAT = (
    Message("user", "Which word?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "no such word", tool_call_id="call00000", name="look"),
    Message("assistant", "\n\nSorry, I mean ok."),
    Message("user", "fine"),
    Message("assistant", "ok"),
)
SITE = ErrorSite(index=2, kind="not_found", text="no such word", tool="look")


def test_the_kind_of_the_error_gives_the_hint() -> None:
    hints, counts = find_hints(CHAT, [SITE])
    assert [(hint.target, hint.source) for hint in hints] == [(3, "kind")]
    assert hints[0].text.startswith("What look was asked for does not exist")
    assert counts == HintCounts(hinted=1)


def test_the_available_tools_are_told() -> None:
    site = ErrorSite(index=1, kind="unknown_tool", tool="look", available_tools=("find", "open"))
    hints, _ = find_hints(CHAT, [site])
    assert hints[0].text == "look is not available. The available tools are: find, open."


def test_sites_without_hint_or_recovery_are_counted() -> None:
    silent = ErrorSite(index=2, kind="strange", text="")
    late = ErrorSite(index=5, kind="not_found")
    hints, counts = find_hints(CHAT, [silent, late])
    assert (hints, counts) == ([], HintCounts(without_hint=1, without_recovery=1))
    speechless = (*CHAT[:3], Message("assistant", " "))
    assert find_hints(speechless, [SITE])[1] == HintCounts(without_recovery=1)


def test_the_environment_and_then_the_judge_are_asked(tmp_path: Path) -> None:
    asked = []

    def judge(messages: object, site: ErrorSite) -> str:
        asked.append(site)
        return "try a horse"

    unknown = ErrorSite(index=2, kind="strange", text=" it said no ")
    assert find_hints(CHAT, [unknown], judge=judge)[0][0].text == "it said no"
    for _ in range(2):
        (hint,), _ = find_hints(CHAT, [unknown], sources=("kind", "judge"), judge=judge, cache=tmp_path)
        assert (hint.text, hint.source) == ("try a horse", "judge")
    assert len(asked) == 1


def kinds_of_readers() -> set[str]:
    """The error kinds that the code of the readers writes: in tables of patterns, as results, and as arguments."""
    nodes: list[ast.AST] = []
    for path in Path(pairwright.sources.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
                "_FAILURES",
                "_ERROR_STARTS",
                "_WORDS",
            ):
                nodes += [row.elts[0] for row in node.value.elts]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("failed["):
                nodes.append(node.value)
            elif isinstance(node, ast.FunctionDef) and node.name.endswith("error_kind"):
                nodes += [
                    value for part in ast.walk(node) if isinstance(part, ast.Return) for value in results(part.value)
                ]
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in ("Failure", "_failure", "failure_kind"):
                    nodes += node.args[-1:] if name != "Failure" else node.args[:1]
                nodes += [
                    word.value for word in node.keywords if word.arg == "kind" and name in ("ErrorSite", "replace")
                ]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def results(value: ast.expr | None) -> list[ast.AST]:
    """The constants that an expression may have as its value."""
    if isinstance(value, ast.IfExp):
        return [*results(value.body), *results(value.orelse)]
    if isinstance(value, ast.BoolOp):
        return [item for part in value.values for item in results(part)]
    if isinstance(value, ast.Call) and len(value.args) == 2:  # next(..., default), known.get(..., default)
        return [value.args[1]]
    return [] if value is None else [value]


def test_every_kind_of_the_readers_has_a_hint_and_every_hint_a_reader() -> None:
    assert kinds_of_readers() == set(ERROR_KINDS) == set(HINTS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: JSONDecodeError: Expecting value", "invalid_json"),
        ("Error: f() missing 1 required positional argument: 'city'", "missing_argument"),
        ("Error: 1 validation error for Look\nword\n  Field required", "missing_argument"),
        ("Error: 1 validation error for Look\nword\n  Input should be a string", "invalid_arguments"),
        ("Error: [Errno 13] Permission denied: '/etc/shadow'", "permission_denied"),
        ("Error: user 17 not found", "not_found"),
        ("Error: No such file or directory: 'x'", "file_not_found"),
        ("Error: tool not found: lok", "unknown_tool"),
        ("Traceback (most recent call last)\n  ...\nKeyError: 'x'", "exception"),
        ("Error: no", "tool_error"),
    ],
)
def test_what_a_result_says_has_its_kind_and_a_hint_that_adds_to_it(text: str, kind: str) -> None:
    chat = (*CHAT[:2], Message("tool", text, tool_call_id="call00000", name="look"), *CHAT[3:])
    sites = error_sites(list(chat), [], result_error_kind)
    assert [(site.index, site.kind) for site in sites] == [(2, kind)]
    (hint,), counts = find_hints(chat, sites)
    assert (hint.source, counts) == ("kind", HintCounts(hinted=1))
    assert hint.text not in text
    assert "{" not in hint.text


def test_a_hint_that_repeats_what_the_message_says_is_none() -> None:
    said = ErrorSite(index=2, kind="strange", text="No such \n word ")
    assert find_hints(CHAT, [said]) == ([], HintCounts(without_hint=1))
    assert find_hints(CHAT, [SITE], templates={"not_found": "{error}"}) == ([], HintCounts(without_hint=1))
    (hint,), _ = find_hints(CHAT, [said], judge=lambda messages, site: "try a horse")
    assert (hint.text, hint.source) == ("try a horse", "judge")


def test_a_function_is_asked_first_and_the_sources_have_an_order() -> None:
    (hint,), _ = find_hints(CHAT, [SITE], function=lambda messages, site: f"mind {site.kind}")
    assert (hint.text, hint.source) == ("mind not_found", "function")
    (hint,), _ = find_hints(CHAT, [SITE], function=lambda messages, site: None)
    assert hint.source == "kind"
    (hint,), _ = find_hints(CHAT, [SITE], sources=("judge", "function"), function=lambda *_: "a", judge=lambda *_: "b")
    assert (hint.text, hint.source) == ("b", "judge")


def test_tools_are_named_only_where_they_are_known() -> None:
    (hint,), _ = find_hints(CHAT, [ErrorSite(index=1, kind="unknown_tool", tool="look")])
    assert hint.text == "look is not available."
    (hint,), _ = find_hints(CHAT, [ErrorSite(index=2, kind="timeout")])
    assert hint.text.startswith("The tool took too long.")


def test_the_function_of_a_configuration_gives_the_hints(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def hint(messages, site):\n    return f'{site.kind} after {len(messages)} messages'\n"
        "def broken(messages, site):\n    raise KeyError('x')\ndef wrong(messages, site):\n    return 5\n"
    )
    (tmp_path / "config.yaml").write_text("train: {sdpo: {hint: 'own.py:hint'}}\n")
    settings = load_config(tmp_path / "config.yaml", environment={}).train.sdpo  # own.py beside config.yaml
    (hint,), _ = Hinter(settings)(CHAT, [SITE])
    assert (hint.text, hint.source) == ("not_found after 6 messages", "function")
    for name, text in (("broken", "KeyError: 'x', at an error of kind 'not_found'"), ("wrong", "expected the text")):
        with pytest.raises(PairwrightError, match=text):
            Hinter(DistillConfig(hint=f"{tmp_path}/own.py:{name}"))(CHAT, [SITE])


def test_a_judge_at_an_endpoint_is_asked_once_and_says_two_sentences(tmp_path: Path) -> None:
    asked = []

    async def chat(request):
        asked.append(await request.json())
        text = "Look it up in the list first. Then ask again. That should help."
        message = {"role": "assistant", "content": text}
        return JSONResponse({"id": "1", "model": "big", "choices": [{"index": 0, "message": message}]})

    with serving(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])) as url:
        judge = {"base_url": f"{url}/v1", "model": "big", "temperature": 0, "max_retries": 0}
        for model, num_asked in (("big", 1), ("big", 1), ("other", 2)):  # the cache is the judge's own
            settings = DistillConfig.model_validate(
                {"judge": {**judge, "model": model}, "hint_sources": ["judge"], "hint_cache": str(tmp_path)}
            )
            hinter = Hinter(settings)
            (hint,), _ = hinter(CHAT, [SITE])
            hinter.close()
            assert (hint.text, hint.source) == ("Look it up in the list first. Then ask again.", "judge")
            assert len(asked) == num_asked
    question = asked[0]["messages"][0]["content"]
    assert "no such word" in question
    assert "Sorry, I mean ok" not in question  # the recovery is not shown
    settings = DistillConfig.model_validate({"judge": judge, "hint_sources": ["judge"], "hint_cache": f"{tmp_path}/x"})
    hinter = Hinter(settings)
    with pytest.raises(PairwrightError):  # the endpoint is gone: an answer that fails is not an error without a hint
        hinter(CHAT, [SITE])
    hinter.close()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.calls and not family.per_turn])
def test_the_teacher_continues_the_same_ids(name: str) -> None:
    tokenizer = small_tokenizer(name)
    hints, _ = find_hints(CHAT, [SITE])
    item = encode_distillations(tokenizer, CHAT, hints)[0]
    assert len(item.student_index) == len(item.teacher_index) > 0
    assert item.student.ids[item.student_index].tolist() == item.teacher.ids[item.teacher_index].tolist()
    text = tokenizer.decode(item.teacher.ids[item.teacher_index])
    assert text.startswith("\n\nSorry, I mean ok.")
    assert "[Hint: What look" in tokenizer.decode(item.teacher.ids[: item.teacher_index[0]])
    assert "Hint" not in tokenizer.decode(item.student.ids)
    assert item.teacher.ids[item.teacher.mask].tolist() == item.student.ids[item.student.mask].tolist()
    painted = tokenizer.decode(item.teacher.ids[item.teacher.paint == Paint.HINT])
    assert "What look was asked for" in painted
    assert "no such word" not in painted


def test_recorded_ids_are_what_the_teacher_continues() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    letters = tuple(int(tokenizer.encode(char)[0][0]) for char in "ok")
    recorded = {3: RecordedTurn((*letters, tokenizer.added["<|im_end|>"]))}
    item = encode_distillations(tokenizer, CHAT, find_hints(CHAT, [SITE])[0], recorded=recorded)[0]
    assert item.teacher.ids[item.teacher_index].tolist() == [*letters, tokenizer.added["<|im_end|>"]]


def test_a_wrong_alignment_cannot_be_built() -> None:
    sequence = Sequence(ids=[1, 2], mask=[0, 1], message_index=[0, 1], paint=[0, 0])
    with pytest.raises(Refusal, match="differ at an index pair"):
        Distillation(student=sequence, teacher=sequence, student_index=np.array([0]), teacher_index=np.array([1]))
    with pytest.raises(Refusal, match="no hint"):
        encode_distillations(small_tokenizer("chatml with calls"), CHAT, [])
