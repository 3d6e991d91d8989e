"""A pytest plugin for the tests of `renderers`: its renderers are replaced by ours, behind its own interface.

`render_ids` is our render, encoded; `render` is `encode_turns`, with its mask. Nothing is caught: a refusal fails a test.
Their headers belong to the message that follows them, ours to no message: they are assigned here, as theirs are.
"""

from typing import Any

import peer_models
import renderers
import renderers.base
import renderers.configs

from pairwright.tokens import ChatTokenizer, EncodeOptions, Paint, encode_turns


class Renderer:
    """Our encoding with the methods that their tests call."""

    def __init__(self, tokenizer: Any, config: Any = None) -> None:
        tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        self.tokenizer = ChatTokenizer(
            tokenizer.backend_tokenizer,
            tokenizer.chat_template,
            special_tokens=tokens,
            stop_tokens=tokenizer.stop_tokens,
        )
        self.config = config

    def render_ids(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> list[int]:
        text = self.tokenizer.renderer(tools).text(messages, tools, prompt=add_generation_prompt)
        ids: list[int] = self.tokenizer.encode(text)[0].tolist()
        return ids

    def render(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> Any:
        roles = [message["role"] for message in messages]
        names = renderers.base.extract_message_tool_names(messages)
        if "assistant" not in roles:
            # Nothing is sampled: the mask is known without asking.
            ids = self.render_ids(messages, tools=tools, add_generation_prompt=add_generation_prompt)
            asked = self.render_ids(messages, tools=tools)
            owners = [0 if position < len(asked) else -1 for position in range(len(ids))]
            return renderers.base.RenderedTokens(
                token_ids=ids,
                message_indices=owners,
                sampled_mask=[False] * len(ids),
                message_roles=roles,
                message_tool_names=names,
            )
        # Where the template rewrites history there are several: the last one has the whole conversation before it.
        sequence = encode_turns(
            self.tokenizer, messages, tools, options=EncodeOptions(allow_dropped=True, missing_reasoning="close")
        )[-1]
        ids, mask = sequence.ids.tolist(), sequence.mask.tolist()
        owners = _with_headers(sequence.message_index.tolist())
        content = ((sequence.paint != Paint.TEMPLATE) | sequence.mask).tolist()
        if add_generation_prompt:
            asked = self.render_ids(messages, tools=tools, add_generation_prompt=True)
            # Some templates add nothing after a generated turn; a stop token that we add is not part of their text.
            more = max(0, len(asked) - len(ids))
            ids, mask, owners = ids + asked[len(ids) :], mask + [False] * more, owners + [-1] * more
            content += [False] * more
        return renderers.base.RenderedTokens(
            token_ids=ids,
            message_indices=owners,
            sampled_mask=mask,
            is_content=content,
            message_roles=roles,
            message_tool_names=names,
        )

    def get_stop_token_ids(self) -> list[int]:
        return [self.tokenizer.added[token] for token in self.tokenizer.eos if token in self.tokenizer.added]


def _with_headers(owners: list[int]) -> list[int]:
    """Tokens of the template go to the message after them, those at the end to the last one.

    >>> _with_headers([-1, 0, -1, -1, 1, -1])
    [0, 0, 1, 1, 1, 1]
    """
    result = list(owners)
    owner = max(owners)
    for position in reversed(range(len(result))):
        owner = result[position] if result[position] >= 0 else owner
        result[position] = owner
    return result


for module in (renderers, renderers.base):
    module.create_renderer = Renderer
    module.load_tokenizer = peer_models.load_model
# A name for a renderer ("auto", "gpt-oss", ...) says nothing here: the template does.
renderers.configs.config_from_name = lambda name: name
