"""The calls that an agent makes through its endpoint in one run, answered by the policy and joined to trajectories.

An agent sends the whole conversation with every call. A call whose prompt begins with an earlier call's prompt and
answer continues it; a path from a first call to a last one is a trajectory, recorded as one experience with the tools,
token ids and log-probabilities of its calls. The run's reward is attached to all of them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pairwright.collection.policies import Completion
from pairwright.collection.recording import Recorder
from pairwright.collection.run_failures import PolicyError
from pairwright.collection.run_policy import RunPolicy
from pairwright.errors import PairwrightError
from pairwright.records.messages import Json, Message, ToolCall, canonical_messages, content_hash
from pairwright.records.tool_texts import to_chat_tool
from pairwright.sources.rollouts.nemo_gym import prompt_of
from pairwright.sources.shapes.chat_messages import as_context, messages_from_chat, tools_from_chat

# Parameters that are not passed on to an endpoint: those that are read here ...
_OURS = {"messages", "input", "instructions", "previous_response_id", "model", "tools", "n", "stop", "stream"}
_OURS |= {"max_tokens", "max_completion_tokens", "max_output_tokens", "chat_template_kwargs", "stream_options"}
# ... those that the configuration sets ...
_OURS |= {"temperature", "top_p", "seed", "logprobs", "top_logprobs", "return_token_ids"}
# ... and those without effect.
_OURS |= {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "include", "truncation"}
_OURS |= {"service_tier", "background"}
# Values that are not passed on either: OpenAI's defaults, and what is read here.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}}, {}),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
}
_MAX_RESPONSES = 1000


class BadRequest(PairwrightError):
    """An invalid request."""


@dataclass(eq=False)
class _Answer:
    """One choice of a call: prompt, completion, and the earlier answer (`parent`) whose conversation it continues."""

    prompt: tuple[Message, ...]
    completion: Completion
    conversation: list[Any]  # canonical form of prompt and answer
    parent: "_Answer | None" = None
    is_continued: bool = False
    is_recorded: bool = False


@dataclass(eq=False)
class AgentCalls:
    policy: RunPolicy
    recorder: Recorder
    takes_extra: bool  # whether the policy passes on unknown parameters
    failure: PolicyError | None = None
    ignored: set[str] = field(default_factory=set)  # parameters without effect
    _answers: list[_Answer] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    # Response id -> the conversation including the response, for clients that send only new messages.
    _responses: OrderedDict[str, tuple[Message, ...]] = field(default_factory=OrderedDict)

    @property
    def num_calls(self) -> int:
        return len(self._answers)

    async def complete(self, request: Json, *, kind: str) -> tuple[str, list[Completion]]:
        """Answer a request of `kind` chat or responses; returns an id and the completions."""
        try:
            prompt = self._prompt(request, kind)
            tools = [to_chat_tool(tool) for tool in tools_from_chat(request.get("tools"), "tools")]
        except PairwrightError as error:
            raise BadRequest(str(error)) from None
        if not prompt:
            raise BadRequest("messages: expected at least one message")
        if request.get("tool_choice") == "none":
            tools = []
        canonical = canonical_messages(prompt)
        parent = self._parent(canonical)
        if parent is not None:  # our own messages replace the agent's copies, which may be formatted differently
            prompt = (*parent.prompt, parent.completion.message, *prompt[len(parent.conversation) :])
        extra = self._extra(request)
        limits = [_integer(request, name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens")]
        key = content_hash(canonical, tools)
        self._counts[key] = self._counts.get(key, -1) + 1
        identity = content_hash("reply", key, self._counts[key])[:24]
        try:
            completions = await self.policy.complete(
                prompt,
                n=_integer(request, "n") or 1,
                tools=tools,
                max_tokens=next(filter(None, limits), None),
                stop=_stop(request),
                chat_template_kwargs=request.get("chat_template_kwargs"),
                extra=extra,
            )
        except PolicyError as error:
            self.failure = error
            raise
        completions = [_with_ids(item, f"{identity}{number}") for number, item in enumerate(completions)]
        for completion in completions:
            conversation = canonical_messages([*prompt, completion.message])
            self._answers.append(_Answer(prompt, completion, conversation, parent))
        if parent is not None:
            parent.is_continued = True
        if kind == "responses":
            self._responses[f"resp_{identity}"] = (*prompt, completions[0].message)
            while len(self._responses) > _MAX_RESPONSES:
                self._responses.popitem(last=False)
        return identity, completions

    def record(self) -> None:
        """Record every path of calls, ordered by its last call; does nothing if the workflow records steps itself."""
        if self.recorder.steps:
            return
        for answer in self._answers:
            if answer.is_continued:
                continue
            path = [answer]
            while path[0].parent is not None:
                path.insert(0, path[0].parent)
            prompt = path[0].prompt
            messages: list[Message] = []
            for turn in path:
                # what the agent added since the last turn: tool results, user messages, and its own text
                messages += [as_context(message) for message in turn.prompt[len(prompt) + len(messages) :]]
                own = turn.completion.message
                messages.append(as_context(own) if turn.is_recorded else own)
                turn.is_recorded = True
            self.recorder.trajectory(list(prompt), messages)

    def _prompt(self, request: Json, kind: str) -> tuple[Message, ...]:
        if kind == "chat":
            return tuple(messages_from_chat(request.get("messages"), "messages"))
        prompt = tuple(prompt_of(request, {}))
        previous = request.get("previous_response_id")
        if previous is None:
            return prompt
        if previous not in self._responses:
            raise BadRequest(f"previous_response_id: {previous!r} is not a response of this run")
        return self._responses[previous] + prompt

    def _parent(self, canonical: list[Any]) -> _Answer | None:
        """Return the longest earlier conversation that these messages continue; the newest of equal ones."""
        earlier = [item for item in self._answers if canonical[: len(item.conversation)] == item.conversation]
        return max(reversed(earlier), key=lambda item: len(item.conversation), default=None)

    def _extra(self, request: Json) -> Json:
        """Return the parameters that only an endpoint knows; for other policies, record their names as ignored."""
        extra = {
            key: value
            for key, value in request.items()
            if key not in _OURS and value is not None and value not in _DEFAULTS.get(key, ())
        }
        if self.takes_extra:
            return extra
        self.ignored |= set(extra)
        return {}


def _with_ids(completion: Completion, identity: str) -> Completion:
    """Give tool calls ids that are unique within the run and reproducible."""
    message = completion.message
    if not message.tool_calls:
        return completion
    calls = tuple(
        ToolCall(call.name, call.arguments, f"call_{identity}{number}", call.type)
        for number, call in enumerate(message.tool_calls)
    )
    return msgspec.structs.replace(completion, message=msgspec.structs.replace(message, tool_calls=calls))


def _integer(request: Json, name: str) -> int | None:
    value = request.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise BadRequest(f"{name}: got {value!r}, expected a positive integer")
    return value


def _stop(request: Json) -> list[str] | None:
    value = request.get("stop")
    texts = [value] if isinstance(value, str) else value
    if texts is not None and not (isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)):
        raise BadRequest("stop: expected a text, or a list of texts")
    return texts or None
