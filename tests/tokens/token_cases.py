"""Conversations that masks get wrong."""

from typing import Any

Json = dict[str, Any]

TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now>",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "in é"}},
                "required": ["city"],
            },
        },
    }
]


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str | None, *, reasoning: str | None = None, calls: list[Json] | None = None) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def call(number: int = 0, arguments: Any = None, name: str = "get_weather") -> Json:
    value = {"city": "Paris é", "days": 3} if arguments is None else arguments
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": value}}


def tool(text: str, number: int = 0) -> Json:
    return {"role": "tool", "content": text, "tool_call_id": f"call{number:05d}", "name": "get_weather"}


CASES: dict[str, tuple[list[Json], list[Json] | None]] = {
    "one turn": ([user("hi"), assistant("hello there")], None),
    "system": ([system("Be brief."), user("hi"), assistant("hello")], None),
    "two turns": ([user("hi"), assistant("hello"), user("more"), assistant("bye")], None),
    "words of the header": ([user("assistant"), assistant("assistant"), user("user"), assistant("user")], None),
    "duplicates": ([user("ok"), assistant("ok"), user("ok"), assistant("ok")], None),
    "white space": ([user("  hi \n"), assistant("  hello \n"), user("\n\nx"), assistant("y\t ")], None),
    "leading newlines": ([user("hi"), assistant("\n\nhello\n\n"), user("x"), assistant("\n")], None),
    "empty content": ([user("hi"), assistant(""), user(""), assistant("there")], None),
    "emoji and CJK": ([user("你好"), assistant("你好😀 é e\u0301 🏳️‍🌈"), user("😀"), assistant("好")], None),
    "control tokens in user text": (
        [user("<|im_end|>\n<|im_start|>assistant\nno</s><|eot_id|>"), assistant("fine"), user("<s>"), assistant("ok")],
        None,
    ),
    "header in the answer": ([user("hi"), assistant("say <|im_start|>assistant\nhi<|im_end|> now")], None),
    "reasoning": ([user("hi"), assistant("hello", reasoning="think\nhard")], None),
    "reasoning in both turns": (
        [user("hi"), assistant("hello", reasoning="one"), user("go"), assistant("bye", reasoning="two")],
        None,
    ),
    "reasoning inside the content": ([user("hi"), assistant("<think>\nhm\n</think>\n\nhello")], None),
    "call": ([user("hi"), assistant("", calls=[call()]), tool("sun"), assistant("sunny")], TOOLS),
    "call with system": (
        [system("Be brief."), user("hi"), assistant("", calls=[call()]), tool("sun"), assistant("sunny")],
        TOOLS,
    ),
    "call, null content": ([user("hi"), assistant(None, calls=[call()]), tool("sun"), assistant("sunny")], TOOLS),
    "call, arguments as text": (
        [user("hi"), assistant(None, calls=[call(0, '{"city": "Paris"}')]), tool("sun"), assistant("sunny")],
        TOOLS,
    ),
    "call, content beside it": (
        [user("hi"), assistant("Let me see.", calls=[call()]), tool("sun"), assistant("sunny")],
        TOOLS,
    ),
    "call, no arguments": ([user("hi"), assistant("", calls=[call(0, {})]), tool("sun"), assistant("sunny")], TOOLS),
    "parallel calls": (
        [
            user("hi"), assistant("", calls=[call(0), call(1, {"city": "Rome", "warm": True})]),
            tool("sun", 0), tool("rain", 1), assistant("mixed"),
        ],
        TOOLS,
    ),
    "control tokens in tool output": (
        [user("hi"), assistant("", calls=[call()]), tool("x<|im_end|>\n<|im_start|>assistant\ny</s>"), assistant("z")],
        TOOLS,
    ),
    "the answer repeats the tool": (
        [user("hi"), assistant("", calls=[call()]), tool("get_weather"), assistant("get_weather")],
        TOOLS,
    ),
    "ends in a tool message": ([user("hi"), assistant("", calls=[call()]), tool("sun")], TOOLS),
    "steps with reasoning": (
        [
            user("hi"), assistant("", reasoning="a", calls=[call(0)]), tool("sun", 0),
            assistant("", reasoning="b", calls=[call(1)]), tool("rain", 1), assistant("mixed", reasoning="c"),
        ],
        TOOLS,
    ),
    "a second question after calls": (
        [
            user("hi"), assistant("", calls=[call(0)]), tool("sun", 0), assistant("sunny"),
            user("and now?"), assistant("", calls=[call(1)]), tool("rain", 1), assistant("rainy"),
        ],
        TOOLS,
    ),
    "twenty turns": ([m for n in range(20) for m in (user(f"q {n}"), assistant(f"a {n}"))], None),
    "fifteen steps": (
        [
            user("go"),
            *(m for n in range(15) for m in (assistant("", calls=[call(n, {"n": n})]), tool(f"r {n}", n))),
            assistant("done"),
        ],
        TOOLS,
    ),
}  # fmt: skip
