"""`tokens`: which tokenizer, how long sequences may be, what is refused; caps and channels of the combined collator."""

from typing import Literal

from pydantic import Field

from pairwright.config.section import Section


class CollatorConfig(Section):
    """The combined collator: which channels it fills from traces, and how long their sequences may be."""

    max_length: int = Field(default=4096, ge=1)
    """Tokens of a sequence of the policy and distill channels."""
    max_pair_length: int = Field(default=2048, ge=1)
    """Tokens of a side of the preference channel."""
    truncation: Literal["keep_start", "keep_end", "drop"] = "keep_end"
    """What to keep of what is longer."""
    keep_first: int = Field(default=0, ge=0)
    """Tokens at the start that are never cut, such as a BOS token or the system prompt."""
    ignore_index: int = -100
    """Label of tokens that are not trained."""
    reward_key: str | None = None
    """Name of the reward component to use instead of the reward."""
    use_policy: bool = True
    """Fill the policy channel (GRPO)."""
    use_distill: bool = True
    """Fill the distill channel (SDPO) with hinted error turns."""
    use_preference: bool = True
    """Fill the preference channel (DPO) with the pairs of the traces."""


class TokensConfig(Section):
    """Messages to sequences."""

    tokenizer: str | None = None
    """A model's folder, with tokenizer.json."""
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
    experience: tuple[str, ...] = ()
    """Experience tables whose recorded token ids pairs use where both sides have them."""
    workers: int | None = Field(default=None, ge=1)
    """Processes; by default one a core."""
    collator: CollatorConfig = CollatorConfig()
