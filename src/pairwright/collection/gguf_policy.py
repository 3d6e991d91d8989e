"""The policy of a GGUF file: llama.cpp's server in this process, used as an endpoint."""

from pathlib import Path

from pairwright.collection.endpoint_policy import EndpointPolicy
from pairwright.config import PolicyConfig
from pairwright.errors import ConfigError
from pairwright.generate.llama_server import LlamaServer


class GgufPolicy(EndpointPolicy):
    """Answers from a GGUF file. The file determines the data types: `device` and `dtype` are not used."""

    def __init__(self, config: PolicyConfig, file: Path) -> None:
        if config.tools_as_text != "off":
            raise ConfigError(f"tools_as_text: llama.cpp renders chats with the template of {file}: not available")
        self._server = LlamaServer(file, threads=config.num_threads)
        # one answer per request: the server computes the shared prompt only once anyway
        served = {"base_url": self._server.url, "max_choices_per_request": 1, "model_version": config.model_version}
        super().__init__(config.model_copy(update=served))

    async def close(self) -> None:
        await super().close()
        self._server.close()
