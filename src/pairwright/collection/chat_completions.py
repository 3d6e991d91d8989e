"""Chat completion responses as completions: messages, finish reasons, token ids, log-probabilities."""

from typing import Any

from pairwright.collection.policies import Completion
from pairwright.collection.run_failures import PolicyError
from pairwright.errors import PairwrightError
from pairwright.records.messages import Json
from pairwright.sources.fields import has, object_or_empty, text_or_none, value_at
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.sources.shapes.recorded_tokens import are_ids

_ID_PREFIX = "token_id:"  # vLLM's return_tokens_as_token_ids writes ids as token texts


def completions_of_chat(response: Any) -> list[Completion]:
    """Return the choices of a decoded response, in order; raises PolicyError if there are none."""
    choices = value_at(response, "choices")
    if not isinstance(choices, list) or not choices:
        raise PolicyError("bad_response", f"the endpoint's answer has no choices: {str(response)[:200]}")
    return [_completion(response, choice, f"choices[{number}]") for number, choice in enumerate(choices)]


def _completion(response: Json, choice: Any, where: str) -> Completion:
    if not has(choice, message=dict):
        raise PolicyError("bad_response", f"{where} of the endpoint's answer has no message")
    # servers write unset fields as null or []
    fields = {key: item for key, item in choice["message"].items() if item is not None and item != []}
    try:
        message = message_from_chat({"role": "assistant", **fields}, f"{where}.message")
    except PairwrightError as error:
        raise PolicyError("bad_response", f"the endpoint's answer cannot be read: {error}") from None
    texts, logprobs = token_logprobs(choice.get("logprobs"))
    token_ids = ids_of(choice.get("token_ids")) or _ids_of_texts(texts)
    usage = object_or_empty(response.get("usage"))
    # usage is the total of all choices: without ids or log-probabilities each gets an equal share
    num_tokens = len(token_ids or logprobs or ()) or _share(usage.get("completion_tokens"), len(response["choices"]))
    return Completion(
        message=message,
        finish_reason=text_or_none(choice.get("finish_reason")),
        model=text_or_none(response.get("model")),
        response_id=text_or_none(response.get("id")),
        prompt_ids=ids_of(choice.get("prompt_token_ids")) or ids_of(response.get("prompt_token_ids")),
        token_ids=token_ids,
        logprobs=logprobs,
        token_texts=None if token_ids is not None and len(token_ids) == len(texts or ()) else texts,
        num_prompt_tokens=_share(usage.get("prompt_tokens"), 1),
        num_tokens=num_tokens,
    )


def token_logprobs(value: Any) -> tuple[list[str] | None, list[float] | None]:
    """Return texts and log-probabilities of `logprobs.content`; None if they are missing for any token."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not content:
        return None, None
    texts, logprobs = [], []
    for item in content:
        logprob = item.get("logprob") if isinstance(item, dict) else None
        if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not isinstance(item.get("token"), str):
            return None, None
        texts.append(item["token"])
        logprobs.append(float(logprob))
    return texts, logprobs


def ids_of(value: Any) -> list[int] | None:
    return value if value and are_ids(value) else None


def _ids_of_texts(texts: list[str] | None) -> list[int] | None:
    if not texts or not all(text.startswith(_ID_PREFIX) and text[len(_ID_PREFIX) :].isdecimal() for text in texts):
        return None
    return ids_of([int(text[len(_ID_PREFIX) :]) for text in texts])


def _share(value: Any, count: int) -> int:
    return value // count if type(value) is int and value > 0 else 0
