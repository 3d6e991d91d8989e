"""Serves a checkpoint at an OpenAI-compatible endpoint.

openai_schema        request schemas and errors in OpenAI's format
limited_chat         client requests to engine requests; templates within limits, beside the event loop
openai_answers       engine results to chat completions and completions, whole or streamed
model_app            the routes
model_server         the server process, with the built-in engine or vLLM
"""
