"""The encoding options: one object that the functions of this package pass on."""

from typing import Any, Literal

import msgspec

from pairwright.config.sections import CreditConfig, TokensConfig, ToolsAsText
from pairwright.tokens.sequence import Truncation
from pairwright.tokens.spans.law import MissingReasoning, Terms
from pairwright.tokens.spans.regions import Verify
from pairwright.tokens.spans.spelling import Boundaries, Controls
from pairwright.tokens.train_turns import TrainTurns

Use = Literal["use", "ignore"]


class EncodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations become sequences.

    boundaries      "whole": encode the text as a whole, as `apply_chat_template` does; "split": where a token would
                    merge across the start of a turn, encode both sides separately, as inference did
    control_tokens  control tokens in user, tool or system text: "keep" them, "escape" (encode as text) or "refuse"
    require_stop    refuse turns that no stop token follows
    verify          which prompts are rendered and compared with the sequence: of four turns ("quick"; of every turn if
                    the template counts turns or tests text for a word in the conversation), or of every turn ("all")
    missing_reasoning  a turn without reasoning after a prompt that opens a thought: "refuse" it, or "close" the thought
                    at once; the closing tokens are added tokens and not trained
    allow_dropped   train turns that the template does not render completely; `report.dropped` names what is missing
    allow_images    train on the tokens of conversations with images, audio, video or files
    recorded        take recorded token ids, or encode the messages instead
    record_kwargs   give the template the variables that a record was sampled with (info.chat_template_kwargs)
    train_turns     which of the generated turns are trained
    credit          source of verdicts on turns, for train_turns "accepted"
    tools_as_text   write tools, calls and results as text
    max_length, truncation, keep_first   how longer sequences are cut, see `truncate`
    """

    boundaries: Boundaries = "split"
    control_tokens: Controls = "keep"
    require_stop: bool = True
    verify: Verify = "quick"
    missing_reasoning: MissingReasoning = "refuse"
    allow_dropped: bool = False
    allow_images: bool = False
    recorded: Use = "use"
    record_kwargs: Use = "use"
    train_turns: TrainTurns = "all"
    credit: CreditConfig = CreditConfig()
    tools_as_text: ToolsAsText = "off"
    max_length: int | None = None
    truncation: Truncation = "keep_end"
    keep_first: int = 0

    @classmethod
    def of(cls, config: TokensConfig, **changes: Any) -> "EncodeOptions":
        """Return the options of a configuration, which has the same names."""
        return cls(**{name: getattr(config, name) for name in cls.__struct_fields__} | changes)

    @property
    def terms(self) -> Terms:
        is_closing = self.missing_reasoning == "close"
        return Terms(self.require_stop, is_closing, self.allow_dropped)


DEFAULT = EncodeOptions()
WHOLE = EncodeOptions(boundaries="whole")
