"""The local policy: a checkpoint, loaded once, that answers the requests of all tasks in batches."""

from pathlib import Path

from pairwright.collection.policies import Ask, Completion
from pairwright.collection.run_failures import PolicyError
from pairwright.config import PolicyConfig
from pairwright.generate import Batcher, Engine, GenerateError, Request, Sampling
from pairwright.generate.batcher import Load
from pairwright.generate.tool_calls import split_calls
from pairwright.records.messages import Message, ToolCall


class LocalPolicy:
    """Answers from a local engine. Token ids and log-probabilities are recorded exactly as sampled."""

    def __init__(self, engine: Engine, *, name: str | int | None = None) -> None:
        self.name: str | int = engine.name if name is None else name
        self.engine = engine
        self._batcher = Batcher(engine)
        self._call_format = engine.call_format
        self.warning = ""  # shown once during the collection

    @classmethod
    def load(cls, config: PolicyConfig, folder: Path) -> "LocalPolicy":
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # a progress bar would break the live table
        engine = Engine.load(
            folder,
            device=config.device,
            dtype=config.dtype,
            max_batch_tokens=config.max_batch_tokens,
            tools_as_text=config.tools_as_text,
        )
        if config.num_threads is not None:
            import torch

            torch.set_num_threads(config.num_threads)
        return cls(engine, name=config.model_version)

    @property
    def in_work(self) -> Load:
        """The unanswered requests, by state."""
        return self._batcher.load

    async def complete(self, ask: Ask) -> list[Completion]:
        if ask.tools and self._call_format is None:
            self.warning = (
                f"the agent offers tools, and the chat template of {self.engine.name} has no known form of tool calls, "
                "so that no answer can call one: set policy.tools_as_text and tokens.tools_as_text to hermes"
            )
        try:
            prompt = self.engine.prompt_ids(ask.messages, ask.tools, variables=ask.chat_template_kwargs)
            sampling = Sampling(
                temperature=ask.temperature,
                top_p=ask.top_p,
                max_tokens=ask.max_tokens,
                n=ask.n,
                seed=ask.seed,
                stop=ask.stop,
                # special tokens delimit tool calls in many templates, so the parsed text keeps them
                skip_special_tokens=not ask.tools,
            )
            result = await self._batcher.submit(Request(prompt, sampling))
        except GenerateError as error:
            raise PolicyError("refused", str(error)) from error
        prompt_ids = prompt.tolist()
        return [
            Completion(
                message=self._message(choice.text, ask),
                finish_reason=choice.finish_reason,
                model=self.engine.name,
                prompt_ids=prompt_ids,
                token_ids=choice.tokens.tolist(),
                logprobs=choice.logprobs.tolist(),
                num_prompt_tokens=len(prompt_ids),
                num_tokens=len(choice.tokens),
            )
            for choice in result.choices
        ]

    async def close(self) -> None:
        await self._batcher.close()

    def _message(self, text: str, ask: Ask) -> Message:
        if not ask.tools or self._call_format is None:
            return Message("assistant", text)
        rest, calls = split_calls(self._call_format, text)  # the text around the calls, and the calls
        numbered = tuple(
            ToolCall(call.name, call.arguments, f"call_{number}", call.type) for number, call in enumerate(calls)
        )
        # as in chat APIs, empty text is None if there are calls
        return Message("assistant", rest or None if numbered else rest, tool_calls=numbered)
