"""A third oracle: the family's own library. mistral-common encodes piece by piece, without any chat template."""

from pathlib import Path
from typing import Any

import pytest
from token_cases import CASES, TOOLS, assistant, call, tool, user
from token_families import SHARED, real_tokenizer

from pairwright.tokens.encode import encode_chat

mistral_common = pytest.importorskip("mistral_common", reason="mistral-common is the yardstick of this test")
from mistral_common.protocol.instruct.request import ChatCompletionRequest  # noqa: E402
from mistral_common.protocol.instruct.validator import ValidationMode  # noqa: E402
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer  # noqa: E402

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")

PLAIN = (
    "one turn", "two turns", "words of the header", "duplicates", "leading newlines", "emoji and CJK",
    "header in the answer", "twenty turns",
)  # fmt: skip
# The library parses a result as JSON and writes it anew, the template writes it as it is: the same for JSON.
WITH_CALLS = {
    "call": [user("hi"), assistant("", calls=[call()]), tool('{"sky": "sun"}'), assistant("sunny")],
    "parallel calls": [
        user("hi"), assistant("", calls=[call(0), call(1, {"city": "Rome é", "warm": True})]),
        tool("5", 0), tool('["rain"]', 1), assistant("mixed"),
    ],
    "steps": [
        user("go"),
        *(m for n in range(6) for m in (assistant("", calls=[call(n, {"n": n})]), tool(str(n), n))),
        assistant("done"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    path = Path(mistral_common.__file__).parent / "data" / "tekken_240718.json"
    modes = {"whole": ValidationMode.finetuning, "prompt": ValidationMode.test}
    return {name: MistralTokenizer.from_file(str(path), mode=mode) for name, mode in modes.items()}


def compare(theirs: dict[str, Any], chat: list[Any], tools: Any) -> None:
    """Ids of the whole; the mask from what the library gives a server before each turn."""

    def ids(kind: str, messages: list[Any]) -> list[int]:
        request = ChatCompletionRequest.from_openai(messages=messages, tools=tools)
        found: list[int] = theirs[kind].encode_chat_completion(request).tokens
        return found

    whole = ids("whole", chat)
    mask = [False] * len(whole)
    for turn, message in enumerate(chat):
        if message["role"] == "assistant":
            prompt = ids("prompt", chat[:turn])
            assert whole[: len(prompt)] == prompt
            stop = whole.index(2, len(prompt)) + 1  # </s>
            mask[len(prompt) : stop] = [True] * (stop - len(prompt))
    ours = encode_chat(real_tokenizer("mistral_nemo"), chat, tools)
    assert ours.ids.tolist() == whole
    assert ours.mask.tolist() == mask


@pytest.mark.parametrize("case", PLAIN)
def test_ids_and_mask_are_those_of_the_library(case: str, theirs: dict[str, Any]) -> None:
    compare(theirs, *CASES[case])


@pytest.mark.parametrize("case", WITH_CALLS)
def test_with_calls_too(case: str, theirs: dict[str, Any]) -> None:
    compare(theirs, WITH_CALLS[case], TOOLS)
