"""Structural OpenAPI schemas for the API server from pydantic models; pure.

The API server takes a subset of JSON Schema: no references, no unions with null, no `const`, exclusive bounds as
flags, and its cost estimate of a CEL rule multiplies the bounds of everything the rule walks over. So references are
inlined, nullable becomes absent, and a string, list or map without a bound is an error here.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "type",
        "format",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
    }
)
_EXTENSION = "x-kubernetes-"


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, camelCase names and bounds included; raises ValueError naming the field."""
    raw = model.model_json_schema(by_alias=True)
    return _convert(raw, raw.get("$defs", {}), model.__name__)


def at(schema: Schema, path: str) -> Schema:
    """The schema node of a dotted path such as `spec.rules[].spike`."""
    node = schema
    for part in path.split("."):
        name = part.removesuffix("[]")
        node = node["properties"][name]
        if part.endswith("[]"):
            node = node["items"]
    return node


def add_rules(schema: Schema, path: str, *rules: Mapping[str, str]) -> None:
    """Add CEL rules to the node of a path."""
    node = at(schema, path)
    node["x-kubernetes-validations"] = [*node.get("x-kubernetes-validations", []), *(dict(rule) for rule in rules)]


def unbounded(schema: Schema, path: str = "") -> tuple[str, ...]:
    """The paths of strings, lists and maps without an upper bound."""
    found: list[str] = []
    kind = schema.get("type")
    if kind == "string" and "maxLength" not in schema and "enum" not in schema:
        found.append(path)
    if kind == "array":
        if "maxItems" not in schema:
            found.append(path)
        found += unbounded(schema["items"], f"{path}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        if "maxProperties" not in schema:
            found.append(path)
        found += unbounded(cast("Schema", values), f"{path}{{}}")
    for name, child in schema.get("properties", {}).items():
        found += unbounded(child, f"{path}.{name}".lstrip("."))
    return tuple(found)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    node = _resolve(node, definitions, path)
    schema: Schema = {name: value for name, value in node.items() if name in _KEPT or name.startswith(_EXTENSION)}
    if "description" in node:
        schema["description"] = " ".join(str(node["description"]).split())
    if (default := node.get("default")) is not None:
        schema["default"] = _without_null(default)
    if "const" in node:
        schema["enum"] = [node["const"]]
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flag in node:
            schema[bound], schema[flag] = node[flag], True
    if node.get("type") == "integer":
        schema["format"] = "int64"
    if node.get("type") == "array":
        schema |= _items(node, definitions, path)
    if "properties" in node:
        schema["properties"] = {
            name: _convert(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()
        }
    elif isinstance(values := node.get("additionalProperties"), dict):
        schema["additionalProperties"] = _convert(cast("Schema", values), definitions, f"{path}{{}}")
    return schema


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _without_null(child) for name, child in fields.items() if child is not None}
    return value


def _items(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    if "prefixItems" not in node:
        return {"items": _convert(node["items"], definitions, f"{path}[]")}
    kinds = [_convert(child, definitions, f"{path}[{index}]") for index, child in enumerate(node["prefixItems"])]
    if any(kind != kinds[0] for kind in kinds):
        message = f"{path}: a list with items of different kinds has no structural schema"
        raise ValueError(message)
    return {"items": kinds[0], "minItems": len(kinds), "maxItems": len(kinds)}


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The node with its reference inlined and `null` taken out of its union."""
    siblings = {name: value for name, value in node.items() if name not in {"$ref", "allOf", "anyOf", "oneOf"}}
    if "$ref" in node:
        target = definitions[str(node["$ref"]).rpartition("/")[2]]
        return {**_resolve(target, definitions, path), **siblings}
    choices = [choice for key in ("allOf", "anyOf", "oneOf") for choice in node.get(key, ())]
    if not choices:
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {name: value for name, value in siblings.items() if name != "maxLength"}
    rest = [choice for choice in choices if choice.get("type") != "null"]
    if len(rest) != 1:
        message = f"{path}: a union of {len(rest)} kinds has no structural schema"
        raise ValueError(message)
    return {**_resolve(rest[0], definitions, path), **siblings}
