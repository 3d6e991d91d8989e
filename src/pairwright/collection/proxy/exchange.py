"""Converts a request and its response, as raw bytes, to experiences: chat completions and the Responses API.

Only our own headers (`x-pairwright-*`) and content headers are read, so no API key can be recorded.
"""

import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import zstandard

from pairwright.collection.chat_completions import completions_of_chat, token_logprobs
from pairwright.collection.policies import Completion
from pairwright.collection.proxy.event_streams import chat_response, final_response
from pairwright.collection.sampled_tokens import arrays_of
from pairwright.errors import PairwrightError
from pairwright.generate.template_variables import KEY
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import Json, Message, prompt_hash
from pairwright.sources.fields import index, objects_in, text_or_none, value_at
from pairwright.sources.rollouts.nemo_gym import prompt_of
from pairwright.sources.shapes.chat_messages import messages_from_chat, tools_from_chat
from pairwright.sources.shapes.responses import messages_from_items
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind

MAX_DECODED_BYTES = 64 * 2**20
_MAX_CONVERSATIONS = 2000
ENCODINGS = ("gzip", "deflate", "zstd", "identity")


class NotRecorded(PairwrightError):
    """An exchange that was forwarded but not recorded; the message is the reason that is counted."""


@dataclass(frozen=True)
class Place:
    """Session, task, run and step of an exchange, from its headers or its path."""

    session: str | None = None
    task: str | None = None
    run: int = 0
    step: int | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str], session: str | None) -> "Place":
        return cls(
            session=headers.get("x-pairwright-session", session),
            task=headers.get("x-pairwright-task"),
            run=index(headers.get("x-pairwright-run")) or 0,
            step=index(headers.get("x-pairwright-step")),
        )


class Exchanges:
    """Converts exchanges to experiences; remembers the next step of sessions, and responses that may be continued."""

    def __init__(self, batch: int | str = "record") -> None:
        self._batch = batch
        # (session, run) -> its next step; response id -> the conversation up to and including that response
        self._steps: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._conversations: OrderedDict[str, tuple[Message, ...]] = OrderedDict()

    def experiences(
        self, kind: str, place: Place, request: bytes, response: bytes, headers: Mapping[str, str]
    ) -> list[Experience]:
        """Return the experiences of an exchange of `kind` "chat" or "responses"; raises NotRecorded with the reason."""
        request_json = _object(request, "request")
        data = decompress(response, headers.get("content-encoding", ""))
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        read_stream, convert = (chat_response, self._chat) if kind == "chat" else (final_response, self._responses)
        try:
            answer = read_stream(data) if is_stream else _object(data, "response")
            if answer is None:
                raise NotRecorded("the stream broke off")
            return convert(place, request_json, answer)
        except NotRecorded:
            raise
        except PairwrightError as error:
            raise NotRecorded(f"not readable: {error}") from error

    def _chat(self, place: Place, request: Json, answer: Json) -> list[Experience]:
        prompt = tuple(messages_from_chat(request.get("messages"), "messages"))
        tools = tuple(tools_from_chat(request.get("tools"), "tools"))
        completions = completions_of_chat(answer)
        where = self._where(place, prompt, tools)
        variables = request.get(KEY)
        info: Json = {KEY: variables} if variables else {}
        return [
            self._experience(where, number, prompt, tools, (completion.message,), completion, place, info)
            for number, completion in enumerate(completions)
        ]

    def _responses(self, place: Place, request: Json, answer: Json) -> list[Experience]:
        if answer.get("status") not in ("completed", "incomplete"):
            raise NotRecorded(f"a response with status {answer.get('status')!r}")
        prompt = tuple(prompt_of(request, {}))
        # the Responses API may keep history on the server: then a request has only new items
        previous = request.get("previous_response_id")
        if previous is not None:
            if previous not in self._conversations:
                raise NotRecorded("it continues a response that this proxy has not seen")
            prompt = self._conversations[previous] + prompt
        tools = tuple(tools_from_chat(request.get("tools"), "tools"))
        messages = tuple(messages_from_items(answer.get("output") or [], "output"))
        if not messages:
            raise NotRecorded("a response without output")
        is_cut = value_at(answer, "incomplete_details.reason") == "max_output_tokens"
        texts, logprobs = _text_logprobs(answer)
        completion = Completion(
            message=messages[-1],
            finish_reason="length" if is_cut else "stop",
            model=text_or_none(answer.get("model")),
            response_id=text_or_none(answer.get("id")),
            logprobs=logprobs,
            token_texts=texts,
        )
        if completion.response_id is not None:
            self._conversations[completion.response_id] = prompt + messages
            while len(self._conversations) > _MAX_CONVERSATIONS:  # drop the oldest
                self._conversations.popitem(last=False)
        where = self._where(place, prompt, tools)
        return [self._experience(where, 0, prompt, tools, messages, completion, place)]

    def _where(self, place: Place, prompt: tuple[Message, ...], tools: tuple[Json, ...]) -> tuple[str, int, int]:
        """Return (task, run, step): calls of a session are its steps; without a session the task is the prompt hash."""
        if place.session is None and place.task is None:
            return prompt_hash(prompt, tools)[:16], place.run, place.step or 0
        task = place.task or place.session or ""
        key = (place.session or task, place.run)
        step = place.step if place.step is not None else self._steps.get(key, 0)
        self._steps[key] = step + 1
        self._steps.move_to_end(key)
        # bounded, since a proxy may run for weeks; the least recently used session is dropped
        while len(self._steps) > 50 * _MAX_CONVERSATIONS:
            self._steps.popitem(last=False)
        return task, place.run, step

    def _experience(
        self,
        where: tuple[str, int, int],
        number: int,
        prompt: tuple[Message, ...],
        tools: tuple[Json, ...],
        messages: tuple[Message, ...],
        completion: Completion,
        place: Place,
        more: Json | None = None,
    ) -> Experience:
        response_id = completion.response_id
        info: Json = {"candidate": number, **completion.facts(), **(more or {})}
        if place.session is not None:
            info["session"] = place.session
        return Experience(
            # feedback refers to the suffix
            eid=EID(self._batch, *where, EID().suffix if response_id is None else f"{response_id}#{number}"),
            kind=Kind.SINGLE_TURN if len(messages) == 1 else Kind.MULTI_TURN,
            prompt=prompt,
            tools=tools,
            completion=messages,
            errors=tuple(error_sites([*prompt, *messages], list(tools), result_error_kind)),
            truncate_status="response_truncated" if completion.finish_reason == "length" else None,
            model_version=completion.model,
            info=info,
            # one sequence of ids cannot be assigned to several messages
            **(arrays_of(completion) if len(messages) == 1 else {}),
        )


def decompress(data: bytes, encoding: str) -> bytes:
    """Undo the content encoding, in bounded memory."""
    coding = encoding.strip().lower()
    try:
        if coding in ("", "identity"):
            return data
        if coding in ("gzip", "x-gzip", "deflate"):
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: detect gzip or zlib by the header
            # limit the output, since small compressed data may expand enormously (decompression bomb)
            plain = unpacker.decompress(data, MAX_DECODED_BYTES)
            if unpacker.unconsumed_tail:
                raise NotRecorded("too large")
            return plain
        if coding == "zstd":
            # refuse windows above 128 MB, which would be allocated before the first byte is read
            with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(data) as reader:
                plain = reader.read(MAX_DECODED_BYTES + 1)
            if len(plain) > MAX_DECODED_BYTES:
                raise NotRecorded("too large")
            return plain
    except (zlib.error, zstandard.ZstdError) as error:
        raise NotRecorded(f"not readable: {error}") from None
    raise NotRecorded(f"content encoding {coding!r}")


def _text_logprobs(answer: Json) -> tuple[list[str] | None, list[float] | None]:
    """Token texts and log-probabilities of a response whose text is in one part."""
    parts = [part for item in objects_in(answer.get("output")) for part in objects_in(item.get("content"))]
    texts = [part for part in parts if part.get("type") == "output_text"]
    return token_logprobs({"content": texts[0].get("logprobs")}) if len(texts) == 1 else (None, None)


def _object(data: bytes, what: str) -> Json:
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise NotRecorded(f"the {what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotRecorded(f"the {what} is not a JSON object")
    return value
