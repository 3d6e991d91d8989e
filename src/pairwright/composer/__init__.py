"""The Composer collator's names, for training steps written for it: only the import changes.

    from pairwright.composer import CollatorConfig, ComposerDataCollator, TokenizerLike, TraceExample, TraceTurn

Names, defaults, batch keys, shapes, dtypes and sentinels are those of `composer_replication.trainer.data_collator`.
docs/how-to/from-composer.md lists what differs inside a batch.
"""

from pairwright.composer.collator import CollatorConfig, ComposerDataCollator, TraceExample, TraceTurn
from pairwright.composer.stub_encoder import TokenizerLike

__all__ = ["CollatorConfig", "ComposerDataCollator", "TokenizerLike", "TraceExample", "TraceTurn"]
