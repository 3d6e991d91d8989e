"""Chat templates by case: exact as one sequence, exact with a sequence per turn, or refused.

    python -m bench templates [FOLDER]    a table in Markdown, by default of the shared templates

Templates have no tokenizer of their own: each is combined with a real tokenizer to which the control tokens of the
template are added. Every sequence is compared with renders of transformers: the prompt before each trained turn equals
`apply_chat_template` with the generation prompt, and the trained tokens contain the text of the turn and end with a
stop token. A refusal is marked `theirs` if transformers also refuses the conversation.
"""

import copy
import json
import re
import sys
import time
from collections import Counter
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2.exceptions import UndefinedError
from tokenizers import AddedToken, Tokenizer

from pairwright.tokens import ChatTokenizer, EncodeOptions, Refusal, Sequence, encode_turns
from pairwright.tokens.template.render import Template

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
# Names in angle or square brackets, with or without bars.
_CONTROL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|<\|[a-z_]{1,30}>|<[a-z_]{1,30}\|>|\[/?[A-Z_]{2,30}\]|\]~!?b\[|\]~b\]|\[e~\["
    r"|<SPECIAL_\d+>|<_[a-z_]{1,30}>|<seed:\w+>|<(?:sep|eos|bos)>|</?(?:[\w-]+:)?(?:think|tool_call|tool_response|start_of_turn|end_of_turn|end_of_utterance|s)(?::\w+)?>"
)
_TAGS = re.compile(r"</?(?:[\w-]+:)?(?:think|tool_call|tool_response)(?::\w+)?>")
CASES = ("chat", "agent")
_ARGUMENT = "Paris"  # of the tool call
Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None


class Outcome(NamedTuple):
    """`kind`: one, turns, theirs, no_reasoning, refused, or wrong; `detail`: the reason, or the number of sequences."""

    kind: str
    detail: str


def build_case(name: str, *, reasoning: bool) -> tuple[Chat, Tools]:
    """Return a chat of two exchanges, or an agent's run: text with a call, its result, an answer, another exchange."""

    def turn(content: str, thought: str, **fields: Any) -> dict[str, Any]:
        extra = {"reasoning_content": thought} if reasoning else {}
        return {"role": "assistant", "content": content, **extra, **fields}

    start: Chat = [{"role": "system", "content": "Be brief."}]
    if name == "chat":
        return [
            *start,
            {"role": "user", "content": "Hi there"},
            turn("Hello.", "A greeting."),
            {"role": "user", "content": "And now?"},
            turn("Still here.", "They ask again."),
        ], None
    function = {"name": "get_weather", "arguments": {"city": _ARGUMENT}}
    call = {"id": "call00001", "type": "function", "function": function}
    city = {"type": "string", "description": "Its name."}
    schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": "get_weather", "description": "The weather of a city.", "parameters": schema}
    return [
        *start,
        {"role": "user", "content": "Weather in Paris?"},
        turn("Let me look.", "This needs the tool.", tool_calls=[call]),
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "18 C"},
        turn("It is 18 C.", "The tool says so."),
        {"role": "user", "content": "Is that warm?"},
        turn("It is mild.", "18 is neither warm nor cold."),
    ], [{"type": "function", "function": function}]


def render_theirs(source: str, chat: Chat, tools: Tools, variables: dict[str, Any], *, prompt: bool = False) -> str:
    """Render with transformers. If the template requires it, call arguments are JSON text, content is a list of parts,
    or reasoning has another key."""
    from transformers.utils.chat_template_utils import render_jinja_template

    if _reads_reasoning(source):
        chat = [{**m, "reasoning": m["reasoning_content"]} if "reasoning_content" in m else m for m in chat]

    def render(messages: Chat) -> str:
        rendered, _ = render_jinja_template(
            conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=prompt, **variables
        )
        return str(rendered[0])

    try:
        text = render(chat)
    except TypeError:
        return render(_with_text_arguments(chat))
    except UndefinedError:  # the template expects content as a list of parts
        return render(_with_parts(chat))
    return text if "Hi there" in text or "Weather in Paris" in text else render(_with_parts(chat))


@lru_cache
def _reads_reasoning(source: str) -> bool:
    """Return whether the template renders the key `reasoning` but not `reasoning_content`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    shown = []
    for key in ("reasoning_content", "reasoning"):
        turn = {"role": "assistant", "content": "zqa", key: "zqr"}
        try:
            texts, _ = render_jinja_template(
                conversations=[[{"role": "user", "content": "zqu"}, turn]], chat_template=source
            )
        except Exception:  # a template may raise anything
            return False
        shown.append("zqr" in texts[0])
    return shown == [False, True]


def _with_text_arguments(chat: Chat) -> Chat:
    result = copy.deepcopy(chat)
    for message in result:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return result


def _with_parts(chat: Chat) -> Chat:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]


def build_tokenizer(source: str, folder: Path, variables: dict[str, Any] | None = None) -> ChatTokenizer:
    """Return a real tokenizer with the control tokens of a template."""
    backend, special = _load(folder)
    template = Template(source, variables=special)
    texts = [source]
    for name in CASES:
        for reasoning in (True, False):
            try:
                texts.append(template.text(*build_case(name, reasoning=reasoning)))
            except ValueError:
                continue  # the template refuses this conversation
    tokens = sorted({token for text in texts for token in _CONTROL.findall(text)})
    # As in real vocabularies, tags around reasoning and calls are added tokens, but not special.
    for token in tokens:
        is_special = _TAGS.fullmatch(token) is None
        backend.add_tokens([AddedToken(token, special=is_special, normalized=False)])
    # transformers renders the current time.
    return ChatTokenizer(backend, source, special_tokens=special, variables=variables, clock=datetime.now)


@lru_cache(maxsize=1)
def _load(folder: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Return one tokenizer for all templates, since loading it takes longer than a template. It accumulates control
    tokens; those of other templates do not occur in the texts, or this template has them as well."""
    base = ChatTokenizer.from_folder(folder)
    return base.backend, {"bos_token": "<|endoftext|>", **base.special_tokens}


def try_case(tokenizer: ChatTokenizer, source: str, name: str, *, reasoning: bool) -> Outcome:
    """Encode one case and check every sequence."""
    chat, tools = build_case(name, reasoning=reasoning)
    try:
        sequences = encode_turns(tokenizer, chat, tools, options=EncodeOptions(allow_dropped=True))
    except Refusal as refusal:
        if refusal.reason == "template_error" and _is_refused_by_theirs(source, chat, tools, tokenizer.variables):
            return Outcome("theirs", refusal.detail)
        # The prompt opens reasoning and the record has none: a refusal, unless the user closes the reasoning.
        return Outcome("no_reasoning" if refusal.reason == "no_reasoning" else "refused", str(refusal))
    for sequence in sequences:
        fault = find_fault(tokenizer, source, chat, tools, sequence)
        if fault:
            return Outcome("wrong", fault)
    dropped = sorted({field for sequence in sequences for _, field in sequence.report.dropped})
    detail = f"{len(sequences)} sequences" if len(sequences) > 1 else ""
    return Outcome("one" if len(sequences) == 1 else "turns", "; ".join(filter(None, [detail, *dropped])))


def find_fault(tokenizer: ChatTokenizer, source: str, chat: Chat, tools: Tools, sequence: Sequence) -> str:
    """Compare a sequence with renders of transformers. Returns the first difference, or ""."""
    for turn in sorted(set(sequence.message_index[sequence.mask].tolist())):
        positions = [
            number
            for number, own in enumerate(sequence.message_index.tolist())
            if own == turn and sequence.mask[number]
        ]
        variables = {**tokenizer.variables, **sequence.report.mode}
        prompt = render_theirs(source, chat[:turn], tools, variables, prompt=True)
        context = tokenizer.decode(sequence.ids[: positions[0]])
        # Tokens that close the reasoning after the prompt are not trained.
        if not (context.startswith(prompt) if sequence.report.added_tokens else context == prompt):
            return f"message {turn}: the prompt is not what inference is given"
        trained = tokenizer.decode(sequence.ids[positions[0] : positions[-1] + 1])
        last = int(sequence.ids[positions[-1]])
        if not tokenizer.is_control[last]:
            return f"message {turn}: no stop token at the end of {trained!r}"
        dropped = [field for message, field in sequence.report.dropped if message == turn]
        texts = {"content": chat[turn]["content"], "reasoning": chat[turn].get("reasoning_content", "")}
        missing = [name for name, text in texts.items() if text not in trained and name not in dropped]
        if missing:
            return f"message {turn}: {missing} not in {trained!r}"
        if chat[turn].get("tool_calls") and "tool_calls" not in dropped:
            shown = render_theirs(source, chat[: turn + 1], tools, variables).rpartition(_ARGUMENT)[2]
            closing = _cut_at_special(tokenizer, shown)
            if not trained.rpartition(_ARGUMENT)[2].startswith(closing):
                return f"message {turn}: the call does not end with {closing!r} in {trained!r}"
    return ""


def _cut_at_special(tokenizer: ChatTokenizer, text: str) -> str:
    """Return the text up to its first special token, which closes a call."""
    ends = [text.find(token) for token in tokenizer.special if token in text]
    return text[: min(ends, default=len(text))].rstrip()


def _is_refused_by_theirs(source: str, chat: Chat, tools: Tools, variables: dict[str, Any]) -> bool:
    turns = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    try:
        for turn in turns:
            render_theirs(source, chat[:turn], tools, variables, prompt=True)
        render_theirs(source, chat, tools, variables)
    except Exception:  # a template may raise anything
        return True
    return False


def try_template(path: Path, folder: Path) -> dict[tuple[str, bool], Outcome]:
    """Return the outcome of every case of one template."""
    source = path.read_text(encoding="utf-8")
    tokenizer = build_tokenizer(source, folder)
    return {
        (name, reasoning): try_case(tokenizer, source, name, reasoning=reasoning)
        for name in CASES
        for reasoning in (True, False)
    }


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[2:] if arguments is None else arguments
    templates = Path(words[0]) if words else SHARED / "templates"
    folder = Path(words[1]) if len(words) > 1 else SHARED / "tokenizers" / "qwen2_5"
    if not templates.is_dir() or not folder.is_dir():
        sys.exit(f"bench: {templates if folder.is_dir() else folder}: no such folder")
    keys = [(name, reasoning) for name in CASES for reasoning in (True, False)]
    print("| template | " + " | ".join(f"{name}, reasoning {'on' if on else 'off'}" for name, on in keys) + " |")
    print("|---" * (len(keys) + 1) + "|")
    totals: dict[tuple[str, bool], Counter[str]] = {key: Counter() for key in keys}
    paths = sorted(templates.glob("*.jinja"))
    begin = time.perf_counter()
    for number, path in enumerate(paths, start=1):
        print(f"[{number}/{len(paths)}, {time.perf_counter() - begin:.0f} s] {path.stem}", file=sys.stderr, flush=True)
        outcomes = try_template(path, folder)
        for key in keys:
            totals[key][outcomes[key].kind] += 1
        cells = [f"{kind} ({detail})" if detail else kind for kind, detail in (outcomes[key] for key in keys)]
        print(f"| {path.stem} | " + " | ".join(cell.replace("|", "¦").replace("\n", " ") for cell in cells) + " |")
    if not paths:
        sys.exit(f"bench: {templates}: no *.jinja files")
    print("| all | " + " | ".join(", ".join(f"{n} {k}" for k, n in totals[key].items()) for key in keys) + " |")
