"""Tokens: exactly what the model generated, on any chat template, in linear time.

    encode_chat          a conversation as one sequence: ids, mask, message of each token, report
    encode_turns         the same for templates that rewrite history: the fewest sequences that are exact
    encode_pair          a prompt with two completions that continue the same ids; encode_pairs for many
    encode_experience    an experience: its recorded ids if it has them, else its messages
    encode_distillations student and hinted teacher, aligned by index
    check_template       what a template supports
    collate_preference   sequences to batches; collate_policy and collate_distill for the other channels,
                         collate_trees for the trainer's layout of any channel

Where no exact mask exists, a Refusal names the turn and the reason.
"""

from pairwright.tokens.batch.bins import buckets
from pairwright.tokens.batch.collate import (
    Tree,
    TreeBatch,
    as_torch,
    collate_distill,
    collate_policy,
    collate_preference,
    collate_trees,
)
from pairwright.tokens.encode import encode_chat, encode_turns
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, encode_pair, encode_pairs, truncate_pair
from pairwright.tokens.hints import HINTS, Hint, find_hints
from pairwright.tokens.recorded import RecordedTurn, encode_experience, encode_recorded
from pairwright.tokens.refusals import Refusal, TemplateError, TemplateLimit, TokensError
from pairwright.tokens.sequence import Origin, Paint, Report, Sequence, truncate
from pairwright.tokens.stage.check import check_template
from pairwright.tokens.stage.paint import paint_text
from pairwright.tokens.teacher_sequences import Distillation, encode_distillations, truncate_distillation
from pairwright.tokens.template.render import Piece, Rendered, Template
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

__all__ = [
    "HINTS",
    "ChatTokenizer",
    "Distillation",
    "EncodeOptions",
    "EncodedPair",
    "Hint",
    "Origin",
    "Paint",
    "PairMessages",
    "Piece",
    "RecordedTurn",
    "Refusal",
    "Rendered",
    "Report",
    "Sequence",
    "Template",
    "TemplateError",
    "TemplateLimit",
    "TokensError",
    "Tree",
    "TreeBatch",
    "as_torch",
    "buckets",
    "chat_tokenizer",
    "check_template",
    "collate_distill",
    "collate_policy",
    "collate_preference",
    "collate_trees",
    "encode_chat",
    "encode_distillations",
    "encode_experience",
    "encode_pair",
    "encode_pairs",
    "encode_recorded",
    "encode_turns",
    "find_hints",
    "paint_text",
    "truncate",
    "truncate_distillation",
    "truncate_pair",
]
