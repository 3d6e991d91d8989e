"""Inspect logs: a `.json` log `{eval, samples[]}`, or an `.eval` file (zip), read as one `{eval, sample}` per sample.

    sample {id, epoch, input, target, messages[], output, scores{name: {value, answer}}, attachments{}, events[], error}

task = sample id, run = epoch. The conversation is `messages`; the prompt ends before the first assistant message that
the model generated (`source` is not "input"). Tools are those of the model events with answers in the conversation.
`attachment://` references (`tc://` in old logs) are replaced by the text they refer to.

Reward: "C" (correct) is 1, "I" (incorrect) 0, "P" (partial) 0.5, "N" (no answer) 0, yes/true 1, no/false 0; numbers and
booleans keep their value. The default is the first scorer, which Inspect also reports first; options.reward selects
another scorer, or `scorer.key` if a value is an object. An object without a selected key gives no reward unless it has
only one key. All scores are kept in reward_components.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import zstandard

from pairwright.errors import SourceError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    index,
    items,
    list_or_empty,
    mapping,
    object_or_empty,
    objects,
    objects_in,
    optional_mapping,
    optional_objects,
    optional_text,
    score,
    text,
    text_at,
    texts_of,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import plain_content
from pairwright.sources.shapes.chat_messages import content_from_chat, read_call

NAME = "inspect"
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_CUT_SHORT = ("max_tokens", "model_length")
MAX_MEMBER_BYTES = 1 << 30
MAX_HEADER_BYTES = 64 << 20  # the header has names, options and results, no samples
MAX_RATIO = 250  # repetitive logs compress to 1/100; the limit of deflate is about 1/1000
FREE_BYTES = 16 << 20  # always allowed: small members of one repeated line have a higher ratio
_PIECE = 1 << 20
_ZSTD = 93
_DAMAGED = (zipfile.BadZipFile, zlib.error, zstandard.ZstdError, struct.error)
# RuntimeError: an encrypted member; its subclasses NotImplementedError (unknown compression) and RecursionError.
_UNREADABLE = (*_DAMAGED, EOFError, OSError, ValueError, RuntimeError)
# Inspect error type -> failure kind; others are "tool_error".
_KINDS = {"parsing": "invalid_arguments", "timeout": "timeout", "file_not_found": "file_not_found"}


def message_from_inspect(turn: Json, where: str) -> Message:
    """Convert a message of an Inspect sample; errors of tool results and of call parsing go to `extra`."""
    role = text(turn.get("role"), f"{where}.role")
    content = content_from_chat(turn.get("content"), f"{where}.content")
    extra: Json = {}
    reasoning = optional_text(turn.get("reasoning"), f"{where}.reasoning")  # in old logs
    if isinstance(content, list):
        parts = [part for part in content if part.get("type") == "reasoning"]
        content = plain_content([part for part in content if part.get("type") != "reasoning"])
        # Redacted reasoning is encrypted; only its summary is readable.
        thoughts = [text_at(part, "summary" if part.get("redacted") is True else "reasoning") for part in parts]
        reasoning = "\n\n".join(filter(None, thoughts)) or reasoning
    error = turn.get("error")
    if role == "tool" and isinstance(error, dict):
        extra["error"] = error.get("type") if isinstance(error.get("type"), str) else "unknown"
        # The model saw the error; the tool's partial output is kept in `extra`.
        if isinstance(error.get("message"), str) and error["message"] != content:
            if content:
                extra["content"] = content
            content = error["message"]
    calls = []
    parse_errors: Json = {}
    for number, (here, call) in enumerate(optional_objects(turn.get("tool_calls"), f"{where}.tool_calls")):
        calls.append(read_call(call, here, name="function"))
        if isinstance(call.get("parse_error"), str):
            parse_errors[calls[-1].id or str(number)] = call["parse_error"]
    if parse_errors:
        extra["parse_errors"] = parse_errors
    return Message(
        role,
        content,
        reasoning,
        tuple(calls),
        tool_call_id=optional_text(turn.get("tool_call_id"), f"{where}.tool_call_id"),
        name=optional_text(turn.get("function"), f"{where}.function") if role == "tool" else None,
        generated=False if role == "assistant" and turn.get("source") == "input" else None,
        extra=extra,
    )


def error_kind(position: int, message: Message) -> str | None:
    kind = message.extra.get("error")
    if kind is None:
        return None
    if kind == "parsing" and message.text.startswith("Tool ") and "not found" in message.text[:300]:
        return "unknown_tool"
    return _KINDS.get(kind, "tool_error")


def resolve_references(value: Any, stored: Json) -> Any:
    """Replace every text that is a reference by the stored text, recursively."""
    if isinstance(value, str):
        # Only if the whole text is a reference; the keys of `stored` include the prefix.
        return stored.get(value, value)
    if not stored:
        return value
    if isinstance(value, list):
        return [resolve_references(item, stored) for item in value]
    if isinstance(value, dict):
        return {key: resolve_references(item, stored) for key, item in value.items()}
    return value


def tools_of_events(sample: Json, stored: Json) -> list[Json]:
    """Return the tools, unique by name, offered in the model events whose answers are in the conversation."""
    ids = {turn.get("id") for turn in objects_in(sample.get("messages")) if isinstance(turn.get("id"), str)}
    events = sample.get("events")
    if events is None:
        events = value_at(sample, "transcript.events")
    tools: dict[str, Json] = {}
    for event in objects_in(events):
        choices = objects_in(value_at(event, "output.choices"))
        answer = text_at(choices[0], "message.id") if choices else None
        # Skip requests of subagents and scorers, whose answers are not in the conversation.
        if event.get("event") != "model" or (ids and answer not in ids):
            continue
        for tool in objects_in(event.get("tools")):
            if isinstance(tool.get("name"), str) and tool["name"] not in tools:
                tools[tool["name"]] = resolve_references(tool, stored)
    return list(tools.values())


def matches(value: Any) -> bool:
    if not has(value, eval=dict) or "task" not in value["eval"]:
        return False
    return has(value, samples=list) or "sample" in value or has(value, "version", "status")


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    log = mapping(value, "log")
    header = optional_mapping(log.get("eval"), "eval")
    if isinstance(log.get("problem"), str):  # an unreadable member of an .eval file
        raise BadRecord(log["problem"])
    if "sample" in log:
        yield _experience(mapping(log["sample"], "sample"), header, origin)
        return
    if log.get("samples") is None:
        raise BadRecord("samples: the log has none (it is only a header, or the run did not finish)")
    yield from read_each(
        NAME, origin, log["samples"], "samples", lambda sample, _: [_experience(sample, header, origin)]
    )


def _experience(sample: Json, header: Json, origin: Origin) -> Parts:
    # Deduplicated texts by reference.
    stored: Json = {}
    old = value_at(sample, "transcript.content")
    for prefix, texts in (("tc://", old), ("attachment://", sample.get("attachments"))):
        stored |= {prefix + key: item for key, item in object_or_empty(texts).items() if isinstance(item, str)}
    output = optional_mapping(sample.get("output"), "output")
    scores = _scores(sample)
    grades = {key: grade for key, value in _values(scores).items() if (grade := _grade(value)) is not None}
    # The reward is the first scorer's value; an object of several values has no default.
    first = list(_values(dict(list(scores.items())[:1])))
    choices = list_or_empty(output.get("choices"))
    stop_reason = value_at(choices[0], "stop_reason") if choices else None
    return Parts(
        NAME,
        origin,
        task=identifier(sample.get("id")),
        run=index(sample.get("epoch")),
        messages=_messages(sample, output, stored),
        tools=tools_of_events(sample, stored),
        reward=grades.get(first[0]) if len(first) == 1 else None,
        reward_components=grades,
        error_kind=error_kind,
        info=_info(sample, header),
        metrics=_metrics(sample),
        model_version=text_at(header, "model") or text_at(output, "model"),
        truncate_status="response_truncated" if stop_reason in _CUT_SHORT else None,
    )


def _messages(sample: Json, output: Json, stored: Json) -> list[Message]:
    """Return the messages of a sample, or its input and first output if it has none."""
    turns = resolve_references(sample.get("messages"), stored)
    if not turns:  # some logs keep only input and output
        given = resolve_references(sample.get("input"), stored)
        turns = [{"role": "user", "content": given}] if isinstance(given, str) else list(items(given, "input"))
        choices = list_or_empty(output.get("choices"))
        if choices:
            turns.append(resolve_references(mapping(choices[0], "output.choices[0]").get("message"), stored))
    return [message_from_inspect(turn, where) for where, turn in objects(turns, "messages")]


def _scores(sample: Json) -> Json:
    """Return the scorer entries by name; old logs have a single unnamed one."""
    if isinstance(sample.get("scores"), dict):
        return dict(sample["scores"])
    return {"score": sample["score"]} if isinstance(sample.get("score"), dict) else {}


def _values(scores: Json) -> Json:
    """Return the value of each scorer; an object yields one value per key, named `scorer.key`."""
    values: Json = {}
    for scorer, entry in scores.items():
        value = entry.get("value") if isinstance(entry, dict) else entry
        if isinstance(value, dict):
            values.update({f"{scorer}.{key}": item for key, item in value.items()})
        else:
            values[scorer] = value
    return values


def _grade(value: Any) -> float | None:
    if isinstance(value, str):
        for grade in (value, value.strip(), value.strip().lower()):
            if grade in _GRADES:
                return _GRADES[grade]
    return score(value)


def _info(sample: Json, header: Json) -> Json:
    """Return the `info` fields of a sample: ids, target, metadata, error, answers and non-numeric scores."""
    info = texts_of({**header, "eval_task": header.get("task")}, "eval_task", "run_id", "eval_id")
    info |= {key: sample[key] for key in ("target", "metadata", "limit") if sample.get(key)}
    error = sample.get("error")
    if error is not None:
        info["error"] = error.get("message") if isinstance(error, dict) else error
    scores = _scores(sample)
    answers = filled({name: entry.get("answer") for name, entry in scores.items() if isinstance(entry, dict)})
    others = filled({name: value for name, value in _values(scores).items() if _grade(value) is None})
    info |= {key: facts for key, facts in (("answers", answers), ("other_scores", others)) if facts}
    return info


def _metrics(sample: Json) -> Json:
    metrics: Json = {
        key: sample[key] for key in ("total_time", "working_time") if isinstance(sample.get(key), int | float)
    }
    entries = list(object_or_empty(sample.get("model_usage")).values())
    for key in ("input_tokens", "output_tokens"):
        count = sum(index(object_or_empty(entry).get(key)) or 0 for entry in entries)
        if count:
            metrics[key] = count
    return metrics


def read_eval(path: Path) -> Iterator[Json]:
    """Yield the samples of an .eval file, a zip of header.json and samples/<id>_epoch_<n>.json, one at a time.

    Each is `{"eval": eval header, "sample": sample}`; an unreadable sample is None, with a reason under "problem".
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield from _samples(archive, file, path)
    except (zipfile.BadZipFile, OSError, struct.error, ValueError, OverflowError, NotImplementedError) as error:
        raise SourceError(f"{path}: not an Inspect .eval file ({error})") from None


def _samples(archive: zipfile.ZipFile, file: IO[bytes], path: Path) -> Iterator[Json]:
    """Yield the samples of the archive, limiting the total decompressed size."""
    header = _header(archive, file, path)
    # Bounds the total size of all samples, since a zip bomb may have many small members.
    allowed = max(MAX_MEMBER_BYTES, MAX_RATIO * path.stat().st_size)
    for name in archive.namelist():
        member = archive.NameToInfo.pop(name, None)  # of members with the same name, only the last is read, once
        if member is None or not name.startswith("samples/") or not name.endswith(".json"):
            continue
        try:
            data = _bytes(member, archive, file, MAX_MEMBER_BYTES)
            allowed -= len(data)
            sample = _value(data)
        except _UNREADABLE as error:
            yield {"eval": header, "sample": None, "problem": f"{name}: {str(error) or type(error).__name__}"}
            continue
        if allowed < 0:
            raise SourceError(
                f"{path}: its samples are more than {MAX_RATIO} times as long as the file; is it an attack?"
            )
        yield {"eval": header, "sample": sample}


def _header(archive: zipfile.ZipFile, file: IO[bytes], path: Path) -> Json:
    for name in ("header.json", "_journal/start.json"):
        member = archive.NameToInfo.get(name)
        if member is None:
            continue
        try:
            value = _value(_bytes(member, archive, file, MAX_HEADER_BYTES))
        except _UNREADABLE as error:
            raise SourceError(f"{path}: {name} cannot be read ({str(error) or type(error).__name__})") from None
        if has(value, eval=dict):
            header: Json = value["eval"]
            return header
    raise SourceError(f"{path}: no header.json with an `eval`; expected a file that Inspect wrote")


def _bytes(member: zipfile.ZipInfo, archive: zipfile.ZipFile, file: IO[bytes], most: int) -> bytes:
    limit = min(most, max(FREE_BYTES, MAX_RATIO * member.compress_size))
    pieces: list[bytes] = []
    length = 0
    with _open_member(member, archive, file) as stream:
        while piece := stream.read(_PIECE):
            length += len(piece)
            if length > limit:
                raise BadRecord(f"longer than {limit} bytes, from {member.compress_size} in the file")
            pieces.append(piece)
    return b"".join(pieces)


def _open_member(member: zipfile.ZipInfo, archive: zipfile.ZipFile, file: IO[bytes]) -> IO[bytes]:
    """Open a zip member for reading: stored, deflate or zstd."""
    if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return archive.open(member)
    if member.compress_type != _ZSTD:  # bzip2 and lzma could expand a piece without bound
        raise BadRecord(f"compressed with method {member.compress_type}, expected deflate or zstd")
    file.seek(member.header_offset)  # zipfile does not support zstd: skip the member's header
    # Local file header of zip: 30 bytes, with the lengths of name and extra field (u16 each) in the last four.
    name_length, extra_length = struct.unpack("<26xHH", file.read(30))
    file.seek(name_length + extra_length, 1)
    packed = file.read(member.compress_size)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    stream: IO[bytes] = decompressor.stream_reader(packed, read_across_frames=True)
    return stream


def _value(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return json.loads(data)  # Inspect writes NaN and Infinity, which strict JSON decoders refuse


FORMAT = Format(NAME, "record", matches, read, "Inspect evaluation logs")
