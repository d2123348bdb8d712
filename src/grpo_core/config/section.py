"""The base of every config section: unknown keys refused, values frozen, truth and numbers kept apart."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Strict, model_validator

Flag = Annotated[bool, Strict()]
"""true or false, and not a word or number that looks like one."""


class Section(BaseModel):
    """A group of keys. Immutable once read; a changed copy is made with `model_copy(update=...)`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_truth_apart(cls, value: Any) -> Any:
        """Refuse `batch_size: yes`, which would count as 1, and read a bare `off` where "off" is a choice."""
        if not isinstance(value, dict):
            return value
        accepted = {
            info.alias or name: get_args(info.annotation) or (info.annotation,)
            for name, info in cls.model_fields.items()
        }
        return {key: _apart(item, accepted.get(key, ())) for key, item in value.items()}


def _apart(value: Any, accepted: tuple[Any, ...]) -> Any:
    if not isinstance(value, bool) or bool in accepted:
        return value
    word = "on" if value else "off"
    if word in accepted:
        return word
    return str(value).lower() if {int, float} & set(accepted) else value
