"""Matches recorded messages with the completions of the policy, to recover the sampled token ids.

A workflow records messages; the sampled ids belong to completions. A message matches a completion if it is the same
object, or equal in canonical form to the policy's answer for the same conversation. A trajectory has one sequence of
ids if it has the prefix property: every prompt extends the previous ids. If a template rewrites history, or the text of
an answer encodes to other ids than were sampled, there is no such sequence, and the reason is recorded instead. Equal
messages are matched in the order in which the policy returned them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pairwright.collection.policies import Ask, Completion
from pairwright.generate.template_variables import KEY
from pairwright.records.messages import Json, Message, canonical_messages, content_hash
from pairwright.sources.shapes.recorded_tokens import TurnTokens, tokens_of_turns, turn_tokens

# Reasons for missing token ids. The keys appear in `info.without_ids`, in the ledger and in the figures.
WITHOUT_IDS = {
    "no_ids": "the policy returned none (policy.return_token_ids: true asks an endpoint for them)",
    "not_sampled": "a message that the policy did not return in this run at the recorded prompt",
    "history_differs": "a later prompt does not continue the ids before it (the template or the text rewrites history)",
    "tools_differ": "its turns were asked with different tools, so that their prompts do not continue each other",
}


@dataclass(frozen=True)
class Sampled:
    """The completions of a candidate's generated messages.

    `completions` has one item per generated message, None if the policy did not return it. `tools` are those of the
    first request, None if no request is known. `variables` are those of the chat template; a list if the requests of a
    candidate have different ones, so that it cannot be rendered as one sequence. `arrays` are the token fields of the
    experience; if they are empty, `without_ids` is the reason.
    """

    completions: tuple[Completion | None, ...] = ()
    tools: tuple[Json, ...] | None = None
    has_other_tools: bool = False
    variables: Json | list[Json] = field(default_factory=dict)
    arrays: Json = field(default_factory=dict)
    without_ids: str | None = None

    def facts(self) -> Json:
        """Return fields of `info`; lists have one item per generated message."""
        turns = [{} if completion is None else completion.facts() for completion in self.completions]
        facts: Json = {}
        if len(turns) == 1:
            facts = turns[0]
        else:
            names = {"finish_reason": "finish_reasons", "response_id": "response_ids", "logprobs": "logprobs"}
            for name, plural in names.items():
                values = [turn.get(name) for turn in turns]
                if any(value is not None for value in values):
                    facts[plural] = values
        if self.without_ids is not None:
            facts["without_ids"] = self.without_ids
        if self.has_other_tools:
            facts["has_other_tools"] = True
        if self.variables:
            facts[KEY] = self.variables
        return facts


@dataclass(eq=False)
class _Answer:
    """One completion and its request."""

    ask: Ask
    completion: Completion
    is_recorded: bool = False

    @cached_property
    def key(self) -> str:
        return _key((self.completion.message,))

    @cached_property
    def state(self) -> str:
        return _key(self.ask.messages)


class SampledCalls:
    """The completions of one run, in the order in which the policy returned them."""

    def __init__(self) -> None:
        self._answers: list[_Answer] = []
        # Lookup by id() of the completion and of its message, valid since `_answers` keeps both alive. A run may have
        # thousands of answers, so a linear search per candidate would be slow.
        self._by_object: dict[int, _Answer] = {}

    def add(self, ask: Ask, completions: Iterable[Completion]) -> None:
        for completion in completions:
            answer = _Answer(ask, completion)
            self._answers.append(answer)
            self._by_object.setdefault(id(completion), answer)
            self._by_object.setdefault(id(completion.message), answer)

    def match_completion(self, completion: Completion) -> Sampled:
        """Match a candidate that is one completion: its own ids, and the tools of its request."""
        answer = self._by_object.get(id(completion))
        if answer is None:  # for example a modified copy: the same ids with another message
            known = [answer for answer in self._answers if answer.completion.token_ids is not None]
            answer = next((answer for answer in known if answer.completion.token_ids == completion.token_ids), None)
        if answer is not None:
            answer.is_recorded = True
        arrays = arrays_of(completion)
        tools = None if answer is None else answer.ask.tools
        variables = {} if answer is None else answer.ask.chat_template_kwargs
        return Sampled(
            (completion,), tools, variables=variables, arrays=arrays, without_ids=None if arrays else "no_ids"
        )

    def match_messages(self, prompt: Sequence[Message], messages: Sequence[Message]) -> Sampled:
        """Match a candidate of messages: the completion of each generated one, and their ids as one sequence."""
        # positions of the model's turns; all others are tool results and user messages
        generated = [number for number, message in enumerate(messages) if message.is_generated]
        conversation = [*prompt, *messages]
        matches = [
            # the state of a turn is the conversation before it
            self._matches(messages[number], conversation[: len(prompt) + number], is_only=len(generated) == 1)
            for number in generated
        ]
        answers, arrays = _chain(matches)
        for answer in answers:
            if answer is not None:
                answer.is_recorded = True
        asked = [answer.ask.tools for answer in answers if answer is not None]
        has_other_tools = any(tools != asked[0] for tools in asked)
        variables = [answer.ask.chat_template_kwargs for answer in answers if answer is not None]
        without_ids = None if arrays else _reason(answers, has_other_tools=has_other_tools)
        if len(messages) == 1:
            arrays.pop("action_mask", None)  # a single turn: the whole response was generated
        return Sampled(
            completions=tuple(None if answer is None else answer.completion for answer in answers),
            tools=asked[0] if asked else None,
            has_other_tools=has_other_tools,
            variables=variables if any(item != variables[0] for item in variables) else (variables or [{}])[0],
            arrays=arrays,
            without_ids=without_ids,
        )

    def _matches(self, message: Message, conversation: list[Message], *, is_only: bool) -> list[_Answer]:
        """Return the answers that may match a recorded message, most likely first.

        An equal text that was sampled for another conversation matches only in a trajectory of several turns, whose
        prompts show that they belong together.
        """
        same = self._by_object.get(id(message))
        if same is not None:
            return [same]
        key = _key((message,))
        equal = [answer for answer in self._answers if answer.key == key]
        if not equal:
            return []
        state = _key(conversation)
        # prefer answers to this conversation, and among them those that no candidate uses yet
        at_state = [answer for answer in equal if answer.state == state]
        return sorted(at_state or ([] if is_only else equal), key=lambda answer: answer.is_recorded)


def arrays_of(completion: Completion) -> Json:
    """Return the token fields of prompt and answer as one sequence; empty unless the ids of both are known."""
    arrays = tokens_of_turns([turn_tokens(completion.prompt_ids, completion.token_ids, completion.logprobs)]) or {}
    arrays.pop("action_mask", None)  # the whole response was generated
    return arrays


def _chain(matches: list[list[_Answer]]) -> tuple[list[_Answer | None], Json]:
    """Choose one answer for each generated message, and join their ids to one sequence if possible.

    The last prompt contains all earlier turns, so it decides which of several equal answers belongs to a turn.
    """
    # try each candidate for the last turn, until one continues all earlier turns
    for last in matches[-1] if matches else ():
        whole = last.completion.prompt_ids or []
        fitting = [[answer for answer in answers if _is_start(answer.completion, whole)] for answers in matches[:-1]]
        earlier = _distinct(fitting)
        arrays = tokens_of_turns([_turn(answer) for answer in (*earlier, last)])
        if arrays is not None:
            return [*earlier, last], arrays
    return _distinct(matches), {}


def _distinct(matches: list[list[_Answer]]) -> list[_Answer | None]:
    """Return for each turn its first match that no earlier turn uses."""
    chosen: list[_Answer | None] = []
    for answers in matches:
        chosen.append(next((answer for answer in answers if answer not in chosen), None))
    return chosen


def _is_start(completion: Completion, ids: list[int]) -> bool:
    prompt, answer = completion.prompt_ids or [], completion.token_ids or []
    length = len(prompt)
    # the ids of a turn are a prefix of the last prompt: its own prompt, then its answer
    return bool(prompt and answer) and ids[:length] == prompt and ids[length : length + len(answer)] == answer


def _turn(answer: _Answer | None) -> TurnTokens | None:
    if answer is None:
        return None
    return turn_tokens(answer.completion.prompt_ids, answer.completion.token_ids, answer.completion.logprobs)


def _reason(answers: list[_Answer | None], *, has_other_tools: bool) -> str:
    known = [answer for answer in answers if answer is not None]
    if not known or len(known) < len(answers):
        return "not_sampled"
    if any(_turn(answer) is None for answer in known):
        return "no_ids"
    return "tools_differ" if has_other_tools else "history_differs"


def _key(messages: Sequence[Message]) -> str:
    return content_hash(canonical_messages(messages))
