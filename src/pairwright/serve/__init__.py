"""Serves a checkpoint at an OpenAI-compatible endpoint.

openai_schema        request schemas and errors in OpenAI's format
generation_request   client requests to engine requests
limited_chat         what one request may ask for; templates within limits, beside the event loop
openai_answers       engine results to chat completions and completions
streaming            responses as server-sent events
model_app            the routes
model_server         the server process, with the built-in engine or vLLM
"""
