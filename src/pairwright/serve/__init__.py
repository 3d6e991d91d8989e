"""Serves a checkpoint at an OpenAI-compatible endpoint.

openai_schema        request schemas
openai_errors        errors in OpenAI's format
limited_chat         limits of a request; templates rendered in a separate thread
engine_requests      client requests to engine requests
openai_answers       engine results to chat completions and completions
event_stream         the same, streamed as server-sent events
token_texts          text and bytes of single tokens, for log-probabilities
model_app            the routes
model_server         the server process, with the built-in engine or vLLM
"""
