"""Tokens: exactly what the model generated, on any chat template, in linear time.

    encode_chat          a conversation as one sequence: ids, mask, message of each token, report
    encode_turns         the same for templates that rewrite history: as few sequences as are exact
    encode_pair          a prompt with two completions that continue the same ids; encode_pairs for many
    encode_experience    recorded ids where there are some, else the messages
    encode_distillation  student and hinted teacher, aligned by index
    check_template       what a template can do
    COLLATORS            sequences to batches, by channel; collate_trees for any of them, as the trainer has it

Where no exact mask exists, a Refusal names the turn and the reason.
"""

from pairwright.tokens.batches import as_torch, buckets
from pairwright.tokens.check import check_template
from pairwright.tokens.collate import (
    Tree,
    TreeBatch,
    collate_distill,
    collate_policy,
    collate_preference,
    collate_trees,
    pack,
)
from pairwright.tokens.combine import Collator, CombineOptions, Trace
from pairwright.tokens.distill import (
    Distillation,
    encode_distillation,
    encode_distillations,
    truncate_distillation,
)
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.hints import HINTS, Hint, find_sites, hints_for
from pairwright.tokens.pairs import EncodedPair, PairMessages, encode_pair, encode_pairs, truncate_pair
from pairwright.tokens.recorded import RecordedTurn, encode_experience, encode_recorded
from pairwright.tokens.refusals import Refusal, TemplateError, TemplateLimit, TokensError
from pairwright.tokens.render import Piece, Rendered, Template
from pairwright.tokens.sequence import Paint, Report, Sequence
from pairwright.tokens.show import html_page, painted_text
from pairwright.tokens.tokenizer import ChatTokenizer, FunctionRenderer, Renderer, chat_tokenizer
from pairwright.tokens.truncate import truncate
from pairwright.tokens.turns import encode_turns

COLLATORS = {
    "preference": collate_preference,
    "policy": collate_policy,
    "distill": collate_distill,
    "combined": Collator,
    "trees": collate_trees,
}

__all__ = [
    "COLLATORS", "HINTS", "ChatTokenizer", "Collator", "CombineOptions", "Distillation", "EncodedPair",
    "FunctionRenderer", "Hint", "Paint", "PairMessages", "Piece", "RecordedTurn", "Refusal", "Rendered", "Renderer",
    "Report", "Sequence", "Template", "TemplateError", "TemplateLimit", "TokensError", "Trace", "Tree",
    "TreeBatch", "as_torch", "buckets", "chat_tokenizer", "check_template", "collate_distill", "collate_policy",
    "collate_preference", "collate_trees", "encode_chat", "encode_distillation", "encode_distillations",
    "encode_experience", "encode_pair", "encode_pairs",
    "encode_recorded", "encode_turns", "find_sites", "hints_for", "html_page", "pack", "painted_text", "truncate",
    "truncate_distillation", "truncate_pair",
]  # fmt: skip
