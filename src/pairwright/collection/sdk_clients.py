"""SDK clients of one endpoint: one client per 32 requests in flight.

The API key is read from an environment variable and never appears in a message or a record.
"""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pairwright.config import PolicyConfig
from pairwright.engines.listening import raise_file_limit
from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_NO_KEY = "none"  # the SDK requires a key; local servers ignore it
_REQUESTS_PER_CLIENT = 32


class ClientPool:
    """`async with pool.acquire() as client` for one request. All clients share the key, address and settings."""

    def __init__(self, config: PolicyConfig) -> None:
        try:
            import openai  # noqa: F401
        except ImportError:
            raise ConfigError(
                "policy: an endpoint needs the openai package: pip install 'pairwright[collect]'"
            ) from None
        self._config = config
        self._key = _NO_KEY
        if config.api_key_env is not None:
            self._key = os.environ.get(config.api_key_env, "")
            if not self._key:
                raise ConfigError(f"policy.api_key_env: the environment has no {config.api_key_env}")
        raise_file_limit(65_536)  # each connection needs a file, and the usual soft limit is 1,024
        self._tls = ssl.create_default_context()  # shared: loading the CA certificates takes milliseconds
        self._in_flight: dict[AsyncOpenAI, int] = {}  # requests of each client

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["AsyncOpenAI"]:
        client = next((client for client, num in self._in_flight.items() if num < _REQUESTS_PER_CLIENT), None)
        if client is None:
            client = self._client()
        self._in_flight[client] = self._in_flight.get(client, 0) + 1
        try:
            yield client
        finally:
            self._in_flight[client] -= 1

    async def close(self) -> None:
        for client in self._in_flight:
            await client.close()

    def _client(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        config = self._config
        return AsyncOpenAI(
            base_url=config.base_url,
            api_key=self._key,
            max_retries=0,
            timeout=config.timeout_seconds,
            http_client=DefaultAsyncHttpxClient(verify=self._tls, timeout=config.timeout_seconds),
        )
