"""Generation: a model folder as an engine that answers many requests in one batch, and an asyncio door to it."""

from pairwright.generate.generator import Batcher, Engine
from pairwright.generate.requests import Choice, GenerateError, Piece, Request, Result, Sampling

__all__ = ["Batcher", "Choice", "Engine", "GenerateError", "Piece", "Request", "Result", "Sampling"]
