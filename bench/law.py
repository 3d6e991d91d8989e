"""Checks the law of masks on every template of some folders: each turn is encoded by a rule, refused, or a violation.

    python -m bench law [FOLDER ...] [--seeds N] [--kinds TEXT] [--list]    a table in Markdown

Each cell is a template and a random conversation (tests/tokens/law_cases.py). An oracle that uses only
transformers and jinja2 (tests/tokens/law_oracle.py) determines what may be trained after which prompt; our sequences
are compared with it. Each template is combined with a real vocabulary to which its control tokens are added, and with
the stop tokens of the model's generation_config.json, which are copied to `ENDS`.
"""

import argparse
import itertools
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
sys.path[:0] = [str(ROOT / "tests" / "tokens")]

import law_oracle  # noqa: E402
from law_cases import KINDS, draw_case  # noqa: E402

from pairwright import Message  # noqa: E402
from pairwright.records.messages import ToolCall  # noqa: E402
from pairwright.tokens import ChatTokenizer, Refusal, Sequence, encode_turns  # noqa: E402

# Tokens that end a generation, as in the models' generation_config.json; the first is eos. A template gets the first
# row whose first token it contains.
ENDS: tuple[tuple[str, ...], ...] = (
    ("<|return|>", "<|call|>"),
    ("<turn|>", "<|tool_response>"),
    ("<|observation|>", "<|endoftext|>", "<|user|>"),
    ("<|end_of_msg|>",),
    ("<|im_end|>",),
    ("<|eot_id|>", "<|eom_id|>"),
    ("<|eot|>",),
    ("<end_of_turn>",),
    ("<|END_OF_TURN_TOKEN|>",),
    ("<｜end▁of▁sentence｜>",),
    ("<｜hy_eos:opensource｜>",),
    ("[e~[",),
    ("<seed:eos>",),
    ("<end_of_sentence>",),
    ("<end_of_utterance>",),
    ("</assistant>",),
    ("<|calls|>", "<|end|>"),
    ("<|end|>", "<|endoftext|>"),
    ("<|end_of_text|>",),
    ("<|end_of_turn|>",),
    ("[|endofturn|]",),
    ("<|assistant_end|>", "<|tools_suffix|>"),
    ("<|message_sep|>",),
    ("<|eos|>",),
    ("<|EOT|>",),
    ("<|eom|>",),
    ("<|stop|>",),
    ("<sep>",),
    ("<SPECIAL_12>",),
    ("[INST]", "</s>"),
)
_CONTROL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|<\|[a-z_\"]{1,30}>|<[a-z_]{1,30}\|>|\[/?[A-Z_]{2,30}\]|\]~!?b\[|\]~b\]|\[e~\["
    r"|\[\|[a-z_]{1,30}\|\]|<SPECIAL_\d+>|<_[a-z_]{1,30}>|<seed:\w+>|</?(?:assistant|user|system)>|<(?:sep|eos|bos|end_of_sentence|beginning_of_sentence)>"
    r"|</?(?:[\w-]+:)?(?:think|tool_call|tool_response|start_of_turn|end_of_turn|end_of_utterance|s)(?::\w+)?>"
)
_TAGS = re.compile(r"</?(?:[\w-]+:)?(?:think|tool_call|tool_response)(?::\w+)?>")


@dataclass
class Cell:
    """Result of one conversation. `rules` has the rule of each turn, or one refusal."""

    template: str
    kind: str
    seed: int
    rules: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)  # claimed as witnessed by us, without a witness found by the oracle

    @property
    def outcome(self) -> str:
        return "outside the law" if self.faults else max(self.rules, default="nothing generated")


def read_source(path: Path) -> str:
    """Read a template from its file or from tokenizer_config.json."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        template = json.loads(text).get("chat_template") or ""
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default") or next(iter(named.values()))
        return str(template)
    return text


@lru_cache(maxsize=2)
def load_vocabulary(folder: Path) -> Tokenizer:
    """Return one vocabulary for all templates. It accumulates control tokens; no text has those of other templates."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def build_model(source: str, folder: Path, variables: dict[str, Any] | None = None) -> law_oracle.Model:
    """Return the oracle's model; its control tokens are those in the template and its renders."""
    row = next((row for row in ENDS if row[0] in source), None)
    if row is None and "eos_token" not in source:
        row = next((row for row in ENDS if any(token in source for token in row)), None)
    ends = tuple(token for token in row or ("</s>",) if token != "[INST]")
    if "hy_eos{}" in source:
        ends = ("<｜hy_eos:opensource｜>",)
    eos = "<|endoftext|>" if "<|endoftext|>" in ends else ends[0]
    special = {"bos_token": "<|beginoftext|>", "eos_token": eos}
    texts = [source]
    for kind in ("several, reasoning", "call with text", "call"):
        chat, tools = draw_case(kind, 0, end="")
        plain = law_oracle.Model(source, special, frozenset(ends), (), variables or {})
        chat = law_oracle.apply_forms(chat, law_oracle.find_forms(plain))
        for mode in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            texts.append(law_oracle.render(plain, chat, tools, mode, prompt=True) or "")
            texts.append(law_oracle.render(plain, chat, tools, mode, prompt=False) or "")
    controls = {token for text in texts for token in _CONTROL.findall(text)} | {*special.values(), *ends}
    return law_oracle.Model(source, special, frozenset(ends), tuple(sorted(controls)), variables or {})


def build_tokenizer(model: law_oracle.Model, folder: Path) -> ChatTokenizer:
    backend = load_vocabulary(folder)
    for token in model.controls:
        # As in real vocabularies, tags around reasoning and calls are added tokens, but not special.
        backend.add_tokens([AddedToken(token, special=_TAGS.fullmatch(token) is None, normalized=False)])
    return ChatTokenizer(
        backend,
        model.source,
        special_tokens=model.special,
        stop_tokens=tuple(sorted(model.ends)),
        variables=model.variables or None,
        clock=lambda: law_oracle.CLOCK,
    )


def to_record(message: dict[str, Any]) -> Message:
    calls = [(call["function"], call["id"]) for call in message.get("tool_calls", ())]
    return Message(
        message["role"],
        message["content"] or (None if calls else ""),
        reasoning=message.get("reasoning_content"),
        tool_calls=tuple(
            ToolCall(function["name"], json.dumps(function["arguments"], ensure_ascii=False), name)
            for function, name in calls
        ),
        tool_call_id=message.get("tool_call_id"),
        name=message.get("name"),
    )


def try_cell(
    model: law_oracle.Model, tokenizer: ChatTokenizer, template: str, kind: str, seed: int, *, sets_mode: bool = False
) -> Cell:
    """Encode one conversation and compare it with the law. `sets_mode`: the variables of its mode are configured."""
    cell = Cell(template, kind, seed)
    chat, tools = draw_case(kind, seed, end=sorted(model.ends)[0])
    law_oracle.check_words(model, chat, tools)
    verdicts = {verdict.turn: verdict for verdict in law_oracle.judge(model, chat, tools)}
    if sets_mode:
        tokenizer = tokenizer.with_variables(law_oracle.find_mode(model, chat))
    try:
        sequences = encode_turns(tokenizer, [*map(to_record, chat)], tools)
    except Refusal as refusal:
        check_refusal(cell, verdicts, refusal)
        return cell
    check_sequences(cell, model, tokenizer, chat, verdicts, sequences)
    wanted = {} if sets_mode else law_oracle.find_mode(model, chat)
    for sequence in sequences:
        if sequence.report.mode != wanted:
            cell.faults.append(f"the mode is {sequence.report.mode}, the law says {wanted}")
    return cell


def check_refusal(cell: Cell, verdicts: dict[int, law_oracle.Verdict], refusal: Refusal) -> None:
    cell.rules.append(f"refused: {refusal.reason}")
    reasons = {reason for verdict in verdicts.values() for reason in verdict.refusals}
    if not reasons:
        law = ", ".join(f"turn {verdict.turn} rule {verdict.rule}" for verdict in verdicts.values())
        cell.faults.append(f"untrue refusal {refusal.reason}: {str(refusal)[:200]!r}; the law: {law}")
    elif "any" not in reasons and refusal.reason not in reasons:
        cell.faults.append(f"refused as {refusal.reason}, the law says {sorted(reasons)}: {str(refusal)[:160]!r}")


def check_sequences(
    cell: Cell,
    model: law_oracle.Model,
    tokenizer: ChatTokenizer,
    chat: list[dict[str, Any]],
    verdicts: dict[int, law_oracle.Verdict],
    sequences: list[Sequence],
) -> None:
    places: dict[int, int] = {}
    forms: set[int] = set()
    for place, sequence in enumerate(sequences):
        is_added, is_declared = False, False
        for turn, told_rule in zip(sequence.origin.turns, sequence.report.rules, strict=True):
            if turn in places:
                cell.faults.append(f"turn {turn}: trained twice")
            places[turn] = place
            positions = (sequence.mask & (sequence.message_index == turn)).nonzero()[0].tolist()
            if positions != list(range(positions[0], positions[-1] + 1)):
                cell.faults.append(f"turn {turn}: a mask with holes")
            context = tokenizer.decode(sequence.ids[: positions[0]])
            trained = tokenizer.decode(sequence.ids[positions[0] : positions[-1] + 1])
            rule, fault, form = check_turn(model, verdicts[turn], chat[turn], context, trained)
            cell.rules.append(rule)
            if fault:
                cell.faults.append(f"turn {turn}: {fault}")
            is_declared |= form < 0
            if form < 0 and not fault and told_rule != 3:
                cell.unsure.append(f"turn {turn}: rule {told_rule}: {context[-40:]!r} | {trained!r}")
            is_added |= form >= 0 and verdicts[turn].closing[form] > 0
            if len(verdicts[turn].texts) > 1 and form >= 0:
                forms.add(form)
        report = sequence.report
        if is_added and not report.added_tokens:
            cell.faults.append("a thought that nobody generated is not counted as added")
        if not is_added and not is_declared and (report.added_tokens or report.declared):
            told = f"{report.added_tokens} added tokens, declared {report.declared}"
            cell.faults.append(f"turns {sequence.origin.turns}: {told}, though renders show it")
    if len(forms) > 1:
        cell.faults.append("two forms in one record")
    for turn in verdicts.keys() - places.keys():
        cell.faults.append(f"turn {turn}: not trained, not refused")
    turns = sorted(places)
    for turn, following in itertools.pairwise(turns):
        is_first_rule = all(verdicts[number].rule == 1 for number in (turn, following))
        if is_first_rule and len(verdicts[turn].texts) == 1 and places[turn] != places[following]:
            cell.faults.append(f"turn {turn} and turn {following}: two sequences, though the next prompt continues")


def check_turn(
    model: law_oracle.Model, verdict: law_oracle.Verdict, message: dict[str, Any], context: str, trained: str
) -> tuple[str, str, int]:
    """Return the rule by which a turn was encoded, its faults, and which of two forms it has."""
    got = (
        f"got {context[len(verdict.prompt) :] if context.startswith(verdict.prompt) else context[-80:]!r} | {trained!r}"
    )
    for form, (text, closing) in enumerate(zip(verdict.texts, verdict.closing, strict=True)):
        whole = verdict.prompt + text
        if context + trained != whole:
            continue
        if not closing:
            is_right = context == verdict.prompt
        else:  # white space after the end of reasoning may be trained or not
            extra = context[len(verdict.prompt) :]
            is_right = extra.startswith(text[:closing]) and not extra[closing:].strip()
        if is_right:
            return f"rule {verdict.rule}", "", form
    if verdict.rule == 4:
        return "rule 4", f"must be refused as {sorted(verdict.refusals)} ({verdict.note}): {got}", -1
    if verdict.rule == 3:
        fault = law_oracle.explain_declared(model, verdict, message, trained, context)
        if not fault:
            return "rule 3", "", -1
        return "rule 3", f"no row may give this ({fault}; {verdict.note}): {got}", -1
    forms = zip(verdict.texts, verdict.closing, strict=True)
    wanted = " or ".join(f"{text[:closing]!r} | {text[closing:]!r}" for text, closing in forms)
    where = "the prompt differs" if not context.startswith(verdict.prompt) else "the text differs"
    return f"rule {verdict.rule}", f"{where}: the law (rule {verdict.rule}) {wanted}; {got}", -1


def try_folder(
    folders: list[Path], vocabulary: Path, seeds: int, kinds: list[str], *, step: int = 1, sets_mode: bool = False
) -> list[Cell]:
    """Try every cell of every template below these folders; equal templates once."""
    cells = []
    seen: set[str] = set()
    patterns = ("*.jinja", "*tokenizer_config.json")
    paths = [path for folder in folders for path in sorted(p for name in patterns for p in folder.rglob(name))]
    begin = time.perf_counter()
    for number, path in enumerate(paths[::step], start=1):
        try:
            source = read_source(path)
            if not source.strip() or source in seen or "messages" not in law_oracle.read_names(source):
                continue
        except Exception as error:  # such a file may have any content
            print(f"{path.name}: not read: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            continue
        seen.add(source)
        print(f"[{number}/{len(paths)}, {time.perf_counter() - begin:.0f} s] {path.stem}", file=sys.stderr, flush=True)
        model = build_model(source, vocabulary)
        tokenizer = build_tokenizer(model, vocabulary)
        for kind in kinds:
            for seed in range(seeds):
                cells.append(try_cell(model, tokenizer, path.stem, kind, seed, sets_mode=sets_mode))
    return cells


def print_tables(cells: list[Cell], *, list_faults: bool) -> None:
    rules = ["rule 1", "rule 2", "rule 3", "refused", "outside the law"]
    by_kind: dict[str, Counter[str]] = {}
    turns: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for cell in cells:
        outcome = cell.outcome
        if outcome.startswith("refused"):
            refusals[outcome] += 1
            outcome = "refused"
        for name in (cell.kind, "all"):
            by_kind.setdefault(name, Counter())[outcome] += 1
        turns.update(rule if rule.startswith("rule") else "refused" for rule in cell.rules)
    print("| conversation | " + " | ".join(rules) + " |")
    print("|---" * (len(rules) + 1) + "|")
    for name in [*(kind for kind in by_kind if kind != "all"), "all"]:
        print(f"| {name} | " + " | ".join(str(by_kind[name][rule]) for rule in rules) + " |")
    num_unsure = sum(len(cell.unsure) for cell in cells)
    print(f"\ncells {len(cells)}; turns {dict(turns)}; refusals {dict(refusals)}")
    print(f"turns that we call witnessed and the oracle does not, within what a row may give: {num_unsure}")
    if list_faults:
        for cell in cells:
            for fault in cell.faults:
                print(f"- {cell.template} / {cell.kind} / {cell.seed}: {fault}")
            for turn in cell.unsure:
                print(f"  unsure: {cell.template} / {cell.kind} / {cell.seed}: {turn}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench law")
    parser.add_argument("folders", nargs="*", type=Path, default=[SHARED / "templates", SHARED / "tokenizers"])
    parser.add_argument("--vocabulary", type=Path, default=SHARED / "tokenizers" / "qwen2_5")
    parser.add_argument("--seeds", type=int, default=1, help="conversations of each kind")
    parser.add_argument("--kinds", default="", help="only kinds with this in their name")
    parser.add_argument("--set-mode", action="store_true", help="configure thinking, on or off, by the record")
    parser.add_argument("--list", action="store_true", help="every case outside the law")
    options = parser.parse_args(sys.argv[2:] if arguments is None else arguments)
    for folder in (*options.folders, options.vocabulary):
        if not folder.is_dir():
            sys.exit(f"bench: {folder}: no such folder")
    kinds = [kind for kind in KINDS if options.kinds in kind]
    cells = try_folder(options.folders, options.vocabulary, options.seeds, kinds, sets_mode=options.set_mode)
    if not cells:
        sys.exit("bench: no templates")
    print_tables(cells, list_faults=options.list)
