"""A checkpoint behind an OpenAI-compatible endpoint.

schema       what may be asked, checked at the door
refusals     what is answered instead, as OpenAI's error JSON
answers      results of the engine as chat completions and completions
tool_calls   the calls in what a model wrote, for template families with a known form
streaming    answers in pieces, as server-sent events
app          the routes
server       a process that serves a folder; vLLM instead, where asked for
"""
