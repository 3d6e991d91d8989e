"""Generation: an engine that answers many requests to a local model at a time, and its asyncio interface."""

from pairwright.generate.batcher import Batcher
from pairwright.generate.generator import Engine
from pairwright.generate.requests import Choice, GenerateError, Piece, Request, Result, Sampling

__all__ = ["Batcher", "Choice", "Engine", "GenerateError", "Piece", "Request", "Result", "Sampling"]
