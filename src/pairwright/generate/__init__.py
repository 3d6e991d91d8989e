"""Generation: an engine that answers many requests of a local model in one batch, and its asyncio interface."""

from pairwright.generate.generator import Batcher, Engine
from pairwright.generate.requests import Choice, GenerateError, Piece, Request, Result, Sampling

__all__ = ["Batcher", "Choice", "Engine", "GenerateError", "Piece", "Request", "Result", "Sampling"]
