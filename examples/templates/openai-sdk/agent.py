"""An agent that uses the `openai` SDK. Only the client that it receives knows the address of the model.

`task.client` is an `openai.AsyncOpenAI` for this run; `task.base_url` and `task.api_key` are for every other framework
(LangGraph, pydantic-ai, the OpenAI Agents SDK). Every call is recorded with its tools, token ids and log-probabilities.
"""

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


async def answer(client, request):
    """Run the agent, as in production."""
    messages, calls = [{"role": "user", "content": request}], []
    for _ in range(MAX_TURNS):
        response = await client.chat.completions.create(model="assistant", messages=messages, tools=TOOLS)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or "", calls
        for call in message.tool_calls:
            arguments = parse(call.function.arguments)
            calls.append((call.function.name, arguments))
            result = run_tool(call.function.name, arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "", calls


async def play(task):
    """Play one run; the returned number is its reward."""
    text, calls = await answer(task.client, task["request"])
    if len(calls) != 1 or calls[0][1].get("city") != task["city"]:
        return 0.0
    result = run_tool(task["tool"], {"city": task["city"]})
    return 0.5 * (calls[0][0] == task["tool"]) + 0.5 * (result in text)


def run_tool(name, arguments):
    """Run a tool of this example; replace it by calls to a database, a browser or a shell."""
    city = str(arguments.get("city"))
    results = {"get_weather": ("18 degrees", "7 degrees", "25 degrees"), "get_time": ("09:05", "14:30", "21:45")}
    return results[name][len(city) % 3] if name in results else f"no tool {name}"


def parse(arguments):
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
