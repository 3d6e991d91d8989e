"""Files of batch APIs, one request or result per line:

    OpenAI       {custom_id, method, url, body}      {custom_id, response: {status_code, body}, error}
    Anthropic    {custom_id, params}                 {custom_id, result: {type: succeeded, message}}
    Gemini       {key, request}                      {key, response: {candidates}}

A result does not repeat its request, so the request is looked up by custom_id in the JSON Lines files of the same
folder (or is in the result's own line under `request`, `body` or `params`). If it is missing, or if
two files have different requests with that custom_id, the result is quarantined. A request line has no answer and is
quarantined, too. Several results with the same custom_id are candidates.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from pairwright.records.json_text import encode
from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.row_format import history_format
from pairwright.sources.fields import BadRecord, mapping, optional_mapping, text, text_or_none
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.frameworks.requests_and_answers import is_answer, records_of_call

_REQUESTS = ("body", "params", "request")
_MAX_FILES = 200
_MAX_BYTES = 2**30
_MAX_LINE = 64 * 2**20

# custom_id -> (file, offset) of its request; None if two files have different requests.
Index = dict[str, tuple[str, int] | None]


def matches(value: Any) -> bool:
    return isinstance(value, dict) and _name(value) is not None and (_is_result(value) or _is_request(value))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "line")
    if not _is_result(row):
        raise BadRecord("a request of a batch, without an answer: import the file of the results from the same folder")
    answer = _answer(row)
    inside = next((row[key] for key in _REQUESTS if isinstance(row.get(key), dict)), None)
    request = _request_beside(origin, text(_name(row), "custom_id")) if inside is None else inside
    for wrapper in _REQUESTS:
        request = request[wrapper] if isinstance(request.get(wrapper), dict) else request
    # Results with the same custom_id answer the same prompt.
    yield from _CALL.read({**row, "request": request, "response": answer}, origin, options)


def _name(row: Json) -> str | None:
    """Return the name of a request: its custom_id, or the key of Gemini's files."""
    return text_or_none(row.get("custom_id", row.get("key")))


def _is_result(row: Json) -> bool:
    response, result = row.get("response"), row.get("result")
    if isinstance(response, dict):
        return any(key in response for key in ("body", "status_code", "candidates"))
    if isinstance(result, dict):
        return isinstance(result.get("type"), str)
    return response is None and "response" in row and isinstance(row.get("error"), dict)


def _is_request(row: Json) -> bool:
    if "response" in row or "result" in row:
        return False
    body: Json = next((row[key] for key in _REQUESTS if isinstance(row.get(key), dict)), {})
    return any(key in body for key in ("messages", "input", "prompt", "contents"))


def _answer(row: Json) -> Json:
    """Return the answer of a result; BadRecord with the API's error if there is none."""
    response, result = optional_mapping(row.get("response"), "response"), optional_mapping(row.get("result"), "result")
    answer = response.get("body", response) if response else result.get("message")
    error = row.get("error") or result.get("error") or (answer.get("error") if isinstance(answer, dict) else None)
    if error or not isinstance(answer, dict):
        what = encode(error).decode()[:200] if error else str(result.get("type", "no answer"))
        raise BadRecord(f"the request failed: {what}")
    if not is_answer(answer):
        raise BadRecord("the answer is not a response of OpenAI, Anthropic or Google")
    return answer


def _request_beside(origin: Origin, custom_id: str) -> Json:
    folder = origin.path.parent
    try:
        places = _index(str(folder), os.stat(folder).st_mtime_ns)
        if custom_id not in places:
            raise BadRecord(
                f"no request with custom_id {custom_id!r} beside this file: put the file of the requests (.jsonl) into "
                "its folder and import again"
            )
        place = places[custom_id]
        if place is None:
            raise BadRecord(f"two different requests with custom_id {custom_id!r} beside this file: use two folders")
        return mapping(msgspec.json.decode(_line_at(place)), "request")
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise BadRecord(f"the request of custom_id {custom_id!r} cannot be read: {error}") from None


@lru_cache(maxsize=4)
def _index(folder: str, stamp: int) -> Index:
    """Return the locations of the requests in a folder; `stamp` changes when files are added."""
    index: Index = {}
    files = sorted(path for path in Path(folder).glob("*.jsonl") if path.is_file() and not path.is_symlink())
    for path in files[:_MAX_FILES]:
        if path.stat().st_size <= _MAX_BYTES:
            _index_file(path, index)
    return index


def _index_file(path: Path, index: Index) -> None:
    with path.open("rb") as file:
        offset = 0
        for line in iter(lambda: file.readline(_MAX_LINE), b""):
            try:
                row = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                row = None
            name = _name(row) if isinstance(row, dict) and _is_request(row) else None
            if name is not None:
                place = (str(path), offset)
                known = index.setdefault(name, place)
                if known is not None and known != place and _line_at(known).strip() != line.strip():
                    index[name] = None
            elif offset == 0:
                return  # the first line identifies the kind of file
            offset += len(line)


def _line_at(place: tuple[str, int]) -> bytes:
    with open(place[0], "rb") as file:
        file.seek(place[1])
        return file.readline(_MAX_LINE)


_SUMMARY = "Results of the batch APIs of OpenAI, Anthropic and Google"
_CALL = history_format(
    "batch",
    _SUMMARY,
    matches,
    lambda row: records_of_call(row["request"], row["response"]),
    frozenset({"response", "result", "error", *_REQUESTS}),
)
FORMAT = Format("batch", "record", matches, read, _SUMMARY)
