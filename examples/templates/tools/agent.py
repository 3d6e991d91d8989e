"""An assistant with two tools: it calls one, reads the result, and answers."""

import json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name, description in (("get_weather", "The weather of a city."), ("get_time", "The local time of a city."))
]
MAX_TURNS = 3


def run_tool(name, arguments):
    """Run a tool of this example; replace it by calls to a database, a browser or a shell."""
    city = str(arguments.get("city"))
    results = {"get_weather": ("18 degrees", "7 degrees", "25 degrees"), "get_time": ("09:05", "14:30", "21:45")}
    return results[name][len(city) % 3] if name in results else f"no tool {name}"


async def play(task, policy, recorder):
    """Play one run. The whole trajectory is one experience, and runs of one task are compared with each other."""
    prompt = [{"role": "user", "content": task["request"]}]
    messages = []
    for _ in range(MAX_TURNS):
        (answer,) = await policy.complete([*prompt, *messages], n=1, tools=TOOLS)
        messages.append(answer.message)
        if not answer.message.tool_calls:
            break
        for call in answer.message.tool_calls:
            result = run_tool(call.name, parse(call.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    # tools, token ids and log-probabilities are recorded from the requests to the policy and its answers
    recorder.trajectory(prompt, messages, reward=score(task, messages))


def score(task, messages):
    """Return 1 for the right tool, the right city and an answer with the result; half for a correct call."""
    calls = messages[0].tool_calls
    if len(calls) != 1 or parse(calls[0].arguments).get("city") != task["city"]:
        return 0.0
    result = run_tool(task["tool"], {"city": task["city"]})
    is_answered = not getattr(messages[-1], "tool_calls", True) and result in messages[-1].text
    return 0.5 * (calls[0].name == task["tool"]) + 0.5 * is_answered


def parse(arguments):
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
