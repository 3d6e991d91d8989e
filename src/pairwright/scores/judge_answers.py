"""Answers of judges on disk: a cache by content, and OpenAI's batch files to send and read back.

    DIR/scores/NAME.answers.jsonl    every answer under the hash of its request, synced before it is used
    DIR/scores/NAME.compared.jsonl   pairwise: the judge's verdicts on each pair of runs in both orders

The cache keeps offsets in memory, not texts: about a hundred bytes per answer.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collection.chat_completions import completions_of_chat
from pairwright.collection.endpoint_policy import request_body
from pairwright.collection.judge import Answer, Comparison, answer_of, request_key
from pairwright.collection.policies import Ask, Completion
from pairwright.collection.run_failures import PolicyError
from pairwright.config import PolicyConfig
from pairwright.errors import PairwrightError, SourceError
from pairwright.paths import append_lines, repair_tail
from pairwright.records.messages import Json

_HEADER = b'{"pairwright.answers":1}'
_COMPARED = b'{"pairwright.compared":1}'


class AnswerFile:
    """The answers of one judge for one table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        repair_tail(path, header=_HEADER)
        self._offsets: dict[str, int] = {}
        if not path.exists():
            return
        with open(path, "rb") as file:
            offset = len(file.readline())
            for line in file:
                if (answer := _decode(line)) is not None:
                    self._offsets[answer.key] = offset
                offset += len(line)

    def get(self, key: str) -> Answer | None:
        if key not in self._offsets:
            return None
        with open(self.path, "rb") as file:
            file.seek(self._offsets[key])
            answer = _decode(file.readline())
        # another process may have written in between, so that the offset is wrong: the request is then repeated
        return answer if answer is not None and answer.key == key else None

    def put(self, answer: Answer) -> None:
        line = msgspec.json.encode(answer)
        append_lines(self.path, [line], header=_HEADER)
        self._offsets[answer.key] = self.path.stat().st_size - len(line) - 1


def _decode(line: bytes) -> Answer | None:
    try:
        return msgspec.json.decode(line, type=Answer)
    except msgspec.MsgspecError:
        return None


def append_comparisons(path: Path, comparisons: list[Comparison]) -> None:
    if comparisons:
        append_lines(path, [msgspec.json.encode(comparison) for comparison in comparisons], header=_COMPARED)


def read_comparisons(path: Path) -> list[Comparison]:
    """Read the comparisons of a judge; the last one of each pair of runs counts."""
    if not path.exists():
        return []
    found = {}
    for line in path.read_bytes().splitlines()[1:]:
        try:
            comparison = msgspec.json.decode(line, type=Comparison)
        except msgspec.MsgspecError:
            continue  # an unfinished last line
        found[comparison.a, comparison.b] = comparison
    return list(found.values())


class NotAnswered(PolicyError):
    """A request that was not sent: it is in a batch file, or the limit of requests is reached."""

    def __init__(self, message: str) -> None:
        super().__init__("refused", message)


class BatchPolicy:
    """Writes requests to an OpenAI batch file, if any, instead of sending them; never answers."""

    def __init__(self, config: PolicyConfig, path: Path | None) -> None:
        self.name: str | int = config.model or "judge"
        self._config, self._path = config, path
        self._written: set[str] = set()
        self._file = None if path is None else open(path, "wb")  # noqa: SIM115 (closed by `close`)

    @property
    def num_written(self) -> int:
        return len(self._written)

    async def complete(self, ask: Ask) -> list[Completion]:
        key = request_key(ask, self._config.model)
        if self._file is not None and key not in self._written:
            body = request_body(ask, self._config, 1, ask.seed % 2**31)
            line = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._written.add(key)
        raise NotAnswered("not asked yet: the request is in the batch file" if self._file else "no answer in the file")

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_batch(path: Path, answers: AnswerFile) -> Counter[str]:
    """Read the results of a batch file into the cache; returns the number `read`, and of failures by cause."""
    counts: Counter[str] = Counter()
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    counts[_read_result(line, f"{path}:{number}", answers)] += 1
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    if not counts["read"]:
        raise PairwrightError(f"{path}: no answer in it: {dict(counts) or 'the file is empty'}")
    return counts


def _read_result(line: bytes, where: str, answers: AnswerFile) -> str:
    try:
        result: Any = msgspec.json.decode(line)
    except msgspec.MsgspecError as error:
        raise SourceError(f"{where}: not valid JSON: {error}") from None
    key = result.get("custom_id") if isinstance(result, dict) else None
    if not isinstance(key, str):
        raise SourceError(f"{where}: expected a line of a batch result with custom_id")
    response: Json = result.get("response") or {}
    if result.get("error") or response.get("status_code") != 200:
        cause = result.get("error") or response.get("body")
        return f"failed: {str(cause.get('message') if isinstance(cause, dict) else cause)[:100]}"
    try:
        completion = completions_of_chat(response.get("body"))[0]
    except PolicyError as error:
        return f"failed: {error}"
    if answers.get(key) is None:
        answers.put(answer_of(key, completion))
    return "read"
