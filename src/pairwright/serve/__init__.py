"""Serves a checkpoint at an OpenAI-compatible endpoint.

openai_schema        request schemas
openai_errors        errors in OpenAI's format
engine_requests      client requests to engine requests, within limits
openai_answers       engine results to chat completions and completions
event_stream         the same, streamed as server-sent events
model_app            the routes
model_server         the server process, with the built-in engine or vLLM
"""
