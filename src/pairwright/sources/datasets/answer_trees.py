"""Trees of answers that people ranked or rated:

    oasst      {message_tree_id, prompt{role, text, replies[{role, text, rank, replies[]}]}}, a tree per row
    prm800k    {question{problem}, label{steps[{completions[{text, rating}], chosen_completion, human_completion}]}}

Every answer is a record whose prompt is the preceding conversation; answers to one prompt share a task. The reward of
an OASST message is 0 - rank (rank 0 is the best; without a rank it is unscored), the reward of a PRM800K step its
rating. `step` is the number of previous steps; the answer consists of them and the rated step.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, has, mapping, objects, optional_items, score, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.roles import role_of

OASST, PRM800K = "oasst", "prm800k"
_MAX_ANSWERS = 4096
_MAX_DEPTH = 100
_READ_OF_MESSAGE = frozenset({"text", "role", "replies"})


def matches_oasst(value: Any) -> bool:
    return has(value, "message_tree_id") and has(value.get("prompt"), replies=list)


def read_oasst(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    tree = mapping(value, "tree")
    stack: list[tuple[Json, list[Message]]] = [(mapping(tree.get("prompt"), "prompt"), [])]
    number = 0
    while stack:
        node, before = stack.pop()
        if len(before) > _MAX_DEPTH:
            raise BadRecord(f"replies: more than {_MAX_DEPTH} messages below each other")
        message = Message(role_of(text(node.get("role"), "role")), text(node.get("text"), "text"))
        context = Message(message.role, message.content, generated=False if message.role == "assistant" else None)
        if message.role == "assistant":
            rank = score(node.get("rank"))
            yield Parts(
                OASST,
                origin,
                run=origin.ordinal * _MAX_ANSWERS + number,
                prompt=before,
                completion=[message],
                reward=None if rank is None else 0.0 - rank,
                info={"tree": tree.get("message_tree_id"), **small_fields(node, _READ_OF_MESSAGE)},
            )
            number += 1
        if number >= _MAX_ANSWERS:
            raise BadRecord(f"more than {_MAX_ANSWERS:,} answers in one tree")
        replies = optional_items(node.get("replies"), "replies")
        stack += [(mapping(reply, "replies"), [*before, context]) for reply in reversed(replies)]
    if not number:
        raise BadRecord("no message of the assistant in the tree")


def matches_prm800k(value: Any) -> bool:
    return has(value) and has(value.get("question"), "problem") and has(value.get("label"), "steps")


def read_prm800k(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    question, label = mapping(row.get("question"), "question"), mapping(row.get("label"), "label")
    prompt = [Message("user", text(question.get("problem"), "question.problem"))]
    done: list[str] = []
    number = 0
    for position, (_, step) in enumerate(objects(label.get("steps"), "label.steps")):
        alternatives = [mapping(one, "completions") for one in optional_items(step.get("completions"), "completions")]
        for answer in alternatives:
            yield Parts(
                PRM800K,
                origin,
                run=origin.ordinal * _MAX_ANSWERS + number,
                step=position,
                prompt=prompt,
                completion=[Message("assistant", "\n".join([*done, text(answer.get("text"), "completions.text")]))],
                reward=score(answer.get("rating")),
                info={"finish_reason": label.get("finish_reason"), **small_fields(question, frozenset({"problem"}))},
            )
            number += 1
        chosen, human = step.get("chosen_completion"), step.get("human_completion")
        if isinstance(chosen, int) and 0 <= chosen < len(alternatives):
            done.append(text(alternatives[chosen].get("text"), "completions.text"))
        elif isinstance(human, dict) and isinstance(human.get("text"), str):
            done.append(human["text"])
        else:
            break  # no step was chosen: the solution ends here
    if not number:
        raise BadRecord("label.steps: no completion")


OASST_FORMAT = Format(OASST, "record", matches_oasst, read_oasst, "Conversation trees of OASST")
PRM800K_FORMAT = Format(PRM800K, "record", matches_prm800k, read_prm800k, "PRM800K rated steps")
