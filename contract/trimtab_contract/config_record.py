"""ConfigRecord: the configuration that a checkpoint was saved under, field by field, and what differs from it. Pure.

A field is called as the job spells it, `model.attention.window` or `optimizer.groups[0].pattern`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

ConfigValue = None | bool | int | float | str | tuple[int | float | str, ...]

BOUND_SECTIONS = frozenset({"model", "data", "seed", "globalBatch", "precision"})
"""What a checkpoint cannot be restored under other values of: it would be another model, or other samples."""

FREE_FIELDS = frozenset(
    {"model.dropout", "model.activationCheckpointing", "model.experts.balanceLoss", "model.experts.zLoss"}
)
"""What may be changed all the same: how the model is trained, and not what it computes."""


OLDER_MANIFEST = "as one of an older version, the checkpoint does not tell its configuration, so no field can be named"


class ConfigRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Every field that decides what is trained, with its value, defaults filled in.

    `chosen` names the fields that were not at their default, and the optional sections that were there.
    """

    fields: dict[str, ConfigValue]
    chosen: tuple[str, ...] = ()

    def changes_to(self, now: "ConfigRecord") -> dict[str, str]:
        """By name, one sentence with both values for every field that is another one `now`.

        A field that only one of the two has, because another version wrote the other, counts where it was chosen.
        """
        names = dict.fromkeys((*self.fields, *self.chosen, *now.fields, *now.chosen))
        differing = (name for name in names if _differ(self, now, name))
        return {name: f"{name}: was {_told(self, name)}, is {_told(now, name)}" for name in differing}

    def as_given(self, config: Mapping[str, Any]) -> "ConfigRecord":
        """A job's `config`, in which defaults are left out, as far as this record knows its fields."""
        sections = self.fields.keys() | set(self.chosen)
        flat = {
            name: value
            for name, value in flat_fields(config).items()
            if name in self.fields or any(section in sections for section in _sections(name))
        }
        present = {section for name in flat for section in _sections(name) if section in sections}
        return ConfigRecord(fields=flat, chosen=(*flat, *sorted(present)))

    def section(self, name: str) -> dict[str, Any]:
        """The fields of a section that has no lists of sections, nested again: all of a part of it that has chosen ones
        or is no section, where these are at their default nothing."""
        found: dict[str, Any] = {}
        for field, value in self.fields.items():
            if not field.startswith(f"{name}."):
                continue
            head, *rest = field.removeprefix(f"{name}.").split(".")
            part = f"{name}.{head}"
            if not any(one == part or one.startswith(f"{part}.") for one in self.chosen):
                continue
            if rest:
                found.setdefault(head, {})[".".join(rest)] = value
            else:
                found[head] = value
        return found


def bound_changes(changes: Mapping[str, str]) -> tuple[str, ...]:
    """The sentences of `ConfigRecord.changes_to` about fields that must not differ."""
    return tuple(text for name, text in changes.items() if _top(name) in BOUND_SECTIONS and name not in FREE_FIELDS)


def _differ(then: ConfigRecord, now: ConfigRecord, name: str) -> bool:
    if name in then.fields and name in now.fields:
        return then.fields[name] != now.fields[name]
    return (name in then.chosen) is not (name in now.chosen)


def _told(record: ConfigRecord, name: str) -> str:
    if name not in record.fields:
        return "set" if name in record.chosen else "left out"
    value = record.fields[name]
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def flat_fields(config: Mapping[str, Any], path: str = "") -> dict[str, ConfigValue]:
    """Every value of a nested configuration under its full name; lists of plain values are values."""
    found: dict[str, ConfigValue] = {}
    for key, value in config.items():
        found |= _flat(f"{path}{key}", value)
    return found


def _flat(name: str, value: Any) -> dict[str, ConfigValue]:
    if isinstance(value, Mapping):
        return flat_fields(cast("Mapping[str, Any]", value), f"{name}.")
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        if any(isinstance(item, Mapping) for item in items):
            parts = (_flat(f"{name}[{number}]", item) for number, item in enumerate(items))
            return {inner: found for part in parts for inner, found in part.items()}
        return {name: tuple(item if isinstance(item, (int, float)) else str(item) for item in items)}
    return {name: value if value is None or isinstance(value, (bool, int, float)) else str(value)}


def _sections(name: str) -> Iterator[str]:
    """All that a field lies in: of `a.b[0].c` these are `a`, `a.b` and `a.b[0]`."""
    return (name[: found.start()] for found in re.finditer(r"[.\[]", name))


def _top(name: str) -> str:
    return re.split(r"[.\[]", name, maxsplit=1)[0]
