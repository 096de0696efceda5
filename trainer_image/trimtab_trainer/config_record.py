"""What of the configuration goes into a checkpoint's manifest, so that a restore can name the fields that differ."""

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

from trimtab_contract.config_record import ConfigRecord, ConfigValue, flat_fields

from trimtab_trainer.config import TrainerConfig
from trimtab_trainer.mapping import camel

LEFT_OUT = frozenset(
    {
        "telemetry",
        "checkpoint",
        "faults",
        "parallelism",
        "gradientAccumulationSteps",
        "replicaCheckEvery",
        "maxWithheldSteps",
        "holdTickSeconds",
        "collectiveTimeoutSeconds",
        "saveWaitSeconds",
        "bucketMebibytes",
        # The files may move: the manifest's description of the data tells them by their content.
        "data.path",
        "data.kind",
        "data.textField",
        "data.sources",
    }
)
"""How a run is carried out, which may differ from world to world."""


def config_record(config: TrainerConfig) -> ConfigRecord:
    """Every field that decides what is trained, and which of them are not at their default."""
    fields: dict[str, ConfigValue] = {}
    chosen: list[str] = []
    for name, value, default in _named(config, ""):
        if value != default:
            chosen.append(name)
        if not dataclasses.is_dataclass(value):
            fields |= flat_fields({name: value.value if isinstance(value, Enum) else value})
    return ConfigRecord(fields=fields, chosen=tuple(chosen))


def _named(section: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of every field; of a section with a default of its own, of its fields alone."""
    for field in dataclasses.fields(section):
        name, value = path + camel(field.name), getattr(section, field.name)
        if name in LEFT_OUT:
            continue
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        items = _items(value)
        if dataclasses.is_dataclass(value):
            if default is None:
                yield name, value, default
            yield from _named(value, f"{name}.")
        elif any(dataclasses.is_dataclass(item) for item in items):
            for number, item in enumerate(items):
                yield f"{name}[{number}]", item, None
                yield from _named(item, f"{name}[{number}].")
        else:
            yield name, value, default


def _items(value: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()
