"""Trinity's experiences, for code written for `trinity.common.experience`: only the import changes.

    from pairwright.trinity import EID, CustomField, Experience, Experiences, gather_token_ids, group_by, ...

Names, keyword names, defaults, `to_dict`, uid strings and mutability are those of Trinity 0.6, `Experiences` of 0.5.
Differences: lengths are checked, payloads are read without executing code, a round trip keeps the type and the dtypes,
and `to_record` and `from_record` convert to our own records and back; see docs/how-to/from-trinity.md.
"""

from pairwright.trinity.trinity_batch import (
    Experiences,
    empty_experiences,
    from_hf_datasets,
    gather_action_masks,
    gather_attention_masks,
    gather_multi_modal_inputs,
    gather_response_attrs,
    gather_token_ids,
    group_by,
    split_dpo_experience_to_single_turn,
    to_hf_datasets,
)
from pairwright.trinity.trinity_experience import EID, CustomField, Experience, InvalidExperience

__all__ = [
    "EID",
    "CustomField",
    "Experience",
    "Experiences",
    "InvalidExperience",
    "empty_experiences",
    "from_hf_datasets",
    "gather_action_masks",
    "gather_attention_masks",
    "gather_multi_modal_inputs",
    "gather_response_attrs",
    "gather_token_ids",
    "group_by",
    "split_dpo_experience_to_single_turn",
    "to_hf_datasets",
]
