"""Pairs for tests: one for each thing that some target cannot hold, and a Hypothesis strategy for any pair at all."""

from hypothesis import strategies as st

from pairwright import EID, Message, Pair, ToolCall
from pairwright.pairs.pair_table import pair_id
from strategies import eids, messages, strict_dicts

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return Message("user", text)


def said(text, **more):
    return Message("assistant", text, **more)


def called(*calls):
    return Message("assistant", None, tool_calls=tuple(ToolCall(name, text, key) for key, name, text in calls))


def result(key, text, **more):
    return Message("tool", text, tool_call_id=key, **more)


def pair(prompt, chosen, rejected, tools=(), **more) -> Pair:
    values = {"chosen_reward": 0.9, "rejected_reward": 0.25, "gap": 0.65, "strategy": "all"}
    return Pair(
        id=pair_id(prompt, tools, chosen, rejected), prompt=prompt, tools=tools, chosen=chosen, rejected=rejected,
        chosen_eid=EID("b", "t", 0, 0, "c"), rejected_eid=EID("b", "t", 1, 0, "r"), **(values | more),
    )  # fmt: skip


ASK = user("Weather in Oslo?")
CALL, SAME_CALL = (called((key, "weather", '{"city": "Oslo"}')) for key in ("c1", "r1"))

CASES = {
    "plain": pair([user('Say "hi"\n☃ \\ "role":"user"')], [said("Hi")], [said('He said "content": []')]),
    "system": pair([Message("system", "Be brief."), user("Hi")], [said("Hi")], [said("Good day to you")]),
    "history": pair([user("1?"), said("One."), user("2?")], [said("Two.")], [said("Three.")]),
    "calls": pair([ASK], [CALL], [said("No idea.")], (WEATHER,)),
    "unused-tools": pair([user("Hello")], [said("Hi")], [said("Ho")], (CLOCK,)),
    "results": pair([ASK, CALL, result("c1", "rain")], [said("Rain.")], [said("Sun.")], (WEATHER, CLOCK)),
    "trajectory": pair(
        [ASK], [CALL, result("c1", "rain"), said("Rain.")], [SAME_CALL, result("r1", "rain"), said("Sun.")], (WEATHER,)
    ),
    "apart": pair([user("Go")], [said("x"), user("more"), said("y")], [said("z")]),
    "prefix": pair([user("Go")], [said("x"), user("more"), said("y")], [said("x")]),
    "reasoning": pair([user("6*7?")], [said("42", reasoning="6*7")], [said("41", reasoning="guess")]),
    "parallel": pair(
        [ASK, called(("a", "weather", "{}"), ("b", "clock", "{}")), result("b", "9"), result("a", "sun")],
        [said("Sun, nine.")], [said("Rain.")], (WEATHER, CLOCK),
    ),
    "bad-json": pair([ASK], [called(("c", "weather", "Oslo"))], [said("No.")], (WEATHER,)),
    "text-and-call": pair([ASK], [Message("assistant", "Let me look.", None, CALL.tool_calls)], [said("No.")], (WEATHER,)),
    "names": pair([ASK, CALL, result("c1", "rain", name="weather")], [said("Rain.")], [said("Sun.")], (WEATHER,)),
    "parts": pair([Message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], [said("c")], [said("d")]),
    "extra": pair([user("Hi")], [said("Hi", extra={"finish_reason": "stop"})], [said("Ho")]),
    "weighted": pair([user("Hi!")], [said("Hi")], [said("Ho")], weight=0.5, split="validation"),
    "image": pair([Message("user", [{"type": "image_url", "image_url": {"url": "x"}}])], [said("c")], [said("d")]),
    "no-prompt": pair([], [said("Hi")], [said("Ho")]),
    "only-system": pair([Message("system", "Greet.")], [said("Hi")], [said("Ho")]),
    "empty": pair([user("Hi?")], [said("Hi")], [said("")]),
    "no-answer": pair([ASK, CALL], [result("c1", "rain")], [result("c1", "sun"), said("Sun.")]),
    "from-tool": pair([ASK, CALL], [result("c1", "rain"), said("Rain.")], [result("c1", "sun"), said("Sun.")], (WEATHER,)),
}  # fmt: skip

# What a pair is after it was cut at its divergence.
CUT = {
    "trajectory": ([ASK, CALL, result("c1", "rain")], [said("Rain.")], [said("Sun.")]),
    "apart": ([user("Go")], [said("x")], [said("z")]),
}

sides = st.lists(messages, min_size=1, max_size=3).map(tuple)
floats = st.floats(-1e6, 1e6)


@st.composite
def pairs(draw):
    prompt, tools = draw(st.lists(messages, max_size=2).map(tuple)), draw(st.lists(strict_dicts, max_size=2).map(tuple))
    chosen, rejected, low = draw(sides), draw(sides), draw(floats)
    return Pair(
        id=pair_id(prompt, tools, chosen, rejected), prompt=prompt, tools=tools, chosen=chosen, rejected=rejected,
        chosen_reward=low + draw(st.floats(0.5, 9)), rejected_reward=low, chosen_eid=draw(eids), rejected_eid=draw(eids),
        gap=draw(floats), strategy=draw(st.text(max_size=5)), weight=draw(st.floats(0, 9)),
        split=draw(st.sampled_from(["train", "validation"])), info=draw(strict_dicts),
    )  # fmt: skip
