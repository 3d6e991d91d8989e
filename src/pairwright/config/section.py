"""What every part of the configuration is: frozen, and without a key that it does not know."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration. The line below a field is its documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)
