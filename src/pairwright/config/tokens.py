"""`tokens`: how messages become sequences. The only declaration of these options: the tokens stage, training, the flow
and the command line all take this section."""

from typing import Any, Literal

from pydantic import Field

from pairwright.config.section import Section


class TokensConfig(Section):
    """Messages to sequences."""

    tokenizer: str | None = None
    """A model's folder, with tokenizer.json; training takes the one of the model unless this names another."""
    max_length: int | None = Field(default=None, ge=1)
    """Tokens of an experience's sequence; longer ones are cut."""
    max_pair_length: int | None = Field(default=None, ge=1)
    """Tokens of a pair's side; by default max_length."""
    truncation: Literal["keep_start", "keep_end", "drop"] = "keep_end"
    """What to keep of what is longer; the two sides of a pair are cut alike, no trained turn is cut through."""
    keep_first: int = Field(default=0, ge=0)
    """Tokens at the start that are never cut, such as a BOS token or the system prompt."""
    boundaries: Literal["whole", "split"] = "whole"
    """Encode a conversation as a whole, as apply_chat_template does, or apart where a token would merge across a turn's
    start. Pairs are always split after the prompt."""
    control_tokens: Literal["keep", "escape", "refuse"] = "keep"
    """Control tokens in user, tool or system text: keep them, encode them as text, or refuse the conversation."""
    require_stop: bool = True
    """Refuse turns that no stop token follows."""
    verify: Literal["quick", "all"] = "quick"
    """Render the prompts of four turns of a conversation and compare them, or of every turn."""
    allow_dropped: bool = False
    """Train turns of which the chat template does not render everything that the model generated (tool calls,
    reasoning, text beside calls). By default they are refused."""
    allow_images: bool = False
    """Train on the tokens alone where messages have images, audio, video or files, or where multi_modal_inputs were
    recorded. By default such records are refused: no channel uses them."""
    recorded: Literal["use", "ignore"] = "use"
    """Token ids that were recorded when the model sampled: they are the sequence, and a record whose ids do not fit its
    messages or this tokenizer is refused; or ignore them and encode the messages."""
    experience: tuple[str, ...] = ()
    """Experience tables that pairs were built from, where their recorded ids are; by default those that the pairs'
    lineage.json names."""
    workers: int | None = Field(default=None, ge=1)
    """Processes; by default one a core."""

    @property
    def pair_length(self) -> int | None:
        """The longest side of a pair."""
        return self.max_length if self.max_pair_length is None else self.max_pair_length

    def content(self) -> dict[str, Any]:
        """The options that decide what a sequence is: part of every cache key. Paths and workers are not."""
        return self.model_dump(mode="json", exclude={"tokenizer", "experience", "workers"})
