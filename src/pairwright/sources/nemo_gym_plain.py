"""Plain NeMo Gym rollouts: the usual lines of a large file, in a fraction of the time.

A line is plain if its items are calls, results, reasoning and assistant texts of the usual shape, and its prompt, tools
and reward stand where they belong. Any other line gives None and is read by nemo_gym.py, which alone says what it is.
A plain line says exactly what that reader says of it (tests/store/test_plain_lane.py). No value of a line stays
unchecked, so that what is not valid JSON or UTF-8 is never plain.

Lines are read by the C module of native/, where it was built; what that leaves, or all, is decoded by type here, and
then a line in which something failed is not plain.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from pairwright.canonical import canonical_messages, digest, packed
from pairwright.errors import PairwrightError
from pairwright.jsontext import check_json, decode, encode
from pairwright.messages import ErrorSite, Json, Message
from pairwright.records import Experience, Kind
from pairwright.sources.chat import tools_from_chat
from pairwright.sources.errors_seen import error_sites, tool_names
from pairwright.sources.fields import identifier, index, json_text, score
from pairwright.sources.format import task_hash
from pairwright.sources.leftover import small_fields
from pairwright.sources.nemo_gym import PARAMS, READ, agent_name, prompt_of
from pairwright.sources.nemo_gym_shapes import NULL, Response, Row
from pairwright.sources.plain_answer import Answer, answer_of
from pairwright.sources.result_text import result_error_kind, text_error_kind

try:
    from pairwright.sources.plain_rollout import read_rollout

    IS_NATIVE = True
except ImportError:  # installed without a C compiler
    IS_NATIVE = False

if TYPE_CHECKING:
    from pairwright.sources.plain_rollout import Error

_SHARED_BYTES = 8 * 2**20
_NO_FIELDS: frozenset[str] = frozenset()
_NOT_PLAIN = ("output", "reward_components")
# What reading a line that is not plain may raise.
_NO_ROLLOUT = (ValueError, TypeError, KeyError, OverflowError, RecursionError, PairwrightError)


class _Tools(Struct, gc=False, frozen=True):
    tools: tuple[Json, ...]
    text: bytes
    packed: Raw  # stands for the tools in what is hashed
    names: tuple[str, ...]
    encoded_names: tuple[bytes, ...]


class Given(Struct, gc=False):
    """What the rollouts of one task share, made once from their `responses_create_params`."""

    raw: bytes
    messages: tuple[Message, ...]
    tools: _Tools
    has_instructions: bool
    has_calls: bool  # or results
    errors: tuple[ErrorSite, ...]  # that the prompt shows
    metadata: Any
    info: Json
    prompt: bytes
    hash: str
    prompt_hash: str
    task: str | None = None  # of rollouts whose row has no task index; made when one is seen


class Rollout(Struct, gc=False):
    given: Given
    answer: Answer
    task: str
    run: int | None
    reward: float | None
    model: str | None
    info: Json
    errors: tuple[ErrorSite, ...]


# What a row says beside that: reward, task index and rollout index as they stand there, the agent as JSON, the model,
# and the fields that not every rollout has.
Said = tuple[Any, Any, Any, bytes, str | None, Json | None]

_decode_row = msgspec.json.Decoder(Row).decode
_decode_response = msgspec.json.Decoder(Response).decode
_decode_raw = msgspec.json.Decoder(dict[str, Raw]).decode


class PlainRollouts:
    """Reads the plain lines of one file. Remembers what rollouts of a task share, up to some megabytes of it."""

    def __init__(self) -> None:
        self._is_bare = True  # until a row has fields that not every rollout has
        self._given: dict[bytes, Given] = {}
        self._tools: dict[bytes, _Tools] = {}
        self._num_bytes = 0
        self._last: Given | None = None
        self._last_task: tuple[int | str | None, bytes, str] = (None, b"", "")

    def read(self, line: bytes) -> Rollout | None:
        """A plain line, or None. What is wrong with a line is for the general reader to say."""
        try:
            if IS_NATIVE and (found := self._read_natively(line)) is not None:
                return found
            if self._is_bare:
                try:
                    return self._from_row(_decode_row(line))
                except msgspec.ValidationError:
                    pass  # other fields, or a row that is not plain
            return self._from_row(*self._row(line))
        except _NO_ROLLOUT:
            return None

    def _read_natively(self, line: bytes) -> Rollout | None:
        given = self._last
        known, names = (b"", ()) if given is None else (given.raw, given.tools.encoded_names)
        found = read_rollout(line, known, names, decode, packed, text_error_kind)
        if isinstance(found, bytes):  # it was given something else
            given = self._given_of(found)
            found = read_rollout(line, given.raw, given.tools.encoded_names, decode, packed, text_error_kind)
        if found is None or isinstance(found, bytes) or given is None:
            return None
        answer, said, errors, has_tools, has_instructions = found
        if (has_tools or has_instructions) and _adds_to_request(has_tools, has_instructions, given):
            return None
        if errors is None:
            return self._rollout(given, answer, said, given.errors)
        if given.has_calls and any(tool is None for _, _, _, tool, _ in errors):  # a result of a call in the prompt
            return None
        return self._rollout(given, answer, said, given.errors + _sites(given, errors))

    def _from_row(self, row: Row, more: Json | None = None) -> Rollout | None:
        response = row.response
        given = self._given_of(bytes(row.responses_create_params))
        if response.incomplete_details or _adds_to_request(response.tools, response.instructions, given):
            return None
        answer = answer_of(response.output, given.tools.names)
        if answer is None:
            return None
        said = (row.reward, row.task_index, row.rollout_index, bytes(row.agent_ref), response.model, more)
        return self._rollout(given, answer, said, given.errors)

    def _rollout(self, given: Given, answer: Answer, said: Said, errors: tuple[ErrorSite, ...]) -> Rollout | None:
        reward, number, run, agent, model, more = said
        if type(reward) is not float:
            if isinstance(reward, dict):
                return None
            reward = score(reward)
        if type(run) is not int or not 0 <= run < 2**63:
            run = index(run)
        info = given.info
        if more:
            info = {**small_fields(more, _NO_FIELDS), **info}
            check_json(info, "info")
        return Rollout(given, answer, self._task(number, agent, given), run, reward, model, info, errors)

    def _row(self, line: bytes) -> tuple[Row, Json]:
        """A row with more fields than every rollout has."""
        fields = _decode_raw(line)
        more = {key: decode(value) for key, value in fields.items() if key not in READ}
        self._is_bare = not more
        if not fields.keys().isdisjoint(_NOT_PLAIN):
            raise ValueError("fields for the general reader")
        return Row(
            fields[PARAMS],
            _decode_response(fields["response"]),
            decode(fields.get("reward", NULL)),
            fields.get("agent_ref", NULL),
            decode(fields.get("_ng_task_index", NULL)),
            decode(fields.get("_ng_rollout_index", NULL)),
        ), more

    def _task(self, number: Any, agent: bytes, given: Given) -> str:
        if type(number) is not int:
            number = identifier(number)
        if number is None:
            decode(agent)
            if given.task is None:
                given.task = task_hash(given.messages, given.tools.tools, given.metadata)
            return given.task
        last = self._last_task
        if number != last[0] or agent != last[1] or type(number) is not type(last[0]):
            task = json_text([agent_name({"agent_ref": decode(agent)}), number])
            last = self._last_task = (number, agent, task)
        return last[2]

    def _given_of(self, raw: bytes) -> Given:
        given = self._last
        if given is None or given.raw != raw:
            given = self._given.get(raw)
            if given is None:
                if self._num_bytes > _SHARED_BYTES:
                    self._given.clear()
                    self._tools.clear()
                    self._num_bytes = 0
                given = self._given[raw] = self._new_given(raw)
                self._num_bytes += len(raw)
            self._last = given
        return given

    def _new_given(self, raw: bytes) -> Given:
        fields = _decode_raw(raw)
        text = bytes(fields.pop("tools", NULL))
        tools = self._tools.get(text)
        if tools is None:
            tools = self._tools[text] = _tools(decode(text))
            self._num_bytes += len(text)
        params = {key: decode(value) for key, value in fields.items()}
        messages = tuple(prompt_of(params, {}))
        metadata = params.get("metadata")
        has_calls = any(message.tool_calls or message.role == "tool" for message in messages)
        info = {"metadata": metadata} if metadata else {}
        if info:
            check_json(info, "info")
        return Given(
            raw=raw,
            messages=messages,
            tools=tools,
            has_instructions=bool(params.get("instructions")),
            has_calls=has_calls,
            errors=tuple(error_sites(list(messages), list(tools.tools), result_error_kind)) if has_calls else (),
            metadata=metadata,
            info=info,
            prompt=encode(messages),
            hash=digest(packed((messages, tools.packed))),
            prompt_hash=digest(packed((canonical_messages(messages), tools.packed))),
        )


def _tools(value: Any) -> _Tools:
    tools = tuple(tools_from_chat(value, "tools")) if value else ()
    Experience(kind=Kind.SINGLE_TURN, tools=tools)  # runs the checks of a record
    names = tool_names(list(tools))
    return _Tools(tools, encode(tools), Raw(packed(tools)), names, tuple(name.encode() for name in names))


def _sites(given: Given, errors: "list[Error]") -> tuple[ErrorSite, ...]:
    """What failed, as errors_seen.py says it."""
    return tuple(
        ErrorSite(
            index=len(given.messages) + message,
            kind=kind or "unknown_tool",
            text=f"no tool named {tool!r}" if text is None else text,
            tool=tool,
            call_id=call_id,
            available_tools=given.tools.names,
        )
        for message, kind, text, tool, call_id in errors
    )


def _adds_to_request(tools: Any, instructions: Any, given: Given) -> bool:
    """Whether a response has tools or instructions that the request did not have."""
    return bool((tools and not given.tools.tools) or (instructions and not given.has_instructions))
