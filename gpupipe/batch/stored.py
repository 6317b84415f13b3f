"""A schema as JSON, and back: names, numbers and texts alone, of which nothing is evaluated."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpupipe.batch.fields import Array, Boxes, Bytes, Field, Frames, Image, Index, Key, Mask, Pad, Points, Scalar, Text
from gpupipe.batch.schema import Schema
from gpupipe.errors import ConfigError

__all__ = ["KINDS", "schema_from_json", "schema_to_json"]

KINDS = {kind.__name__: kind for kind in (Image, Mask, Boxes, Points, Scalar, Array, Text, Bytes, Key, Index, Frames)}


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Of each field its kind, and the settings that are not the usual ones.

    Raises ConfigError for a setting that JSON can't hold, as a function is.
    """
    return {name: {"kind": type(field).__name__} | _settings(name, field) for name, field in schema.items()}


def _settings(name: str, field: Field) -> dict[str, Any]:
    usual, settings = type(field)(), {}
    for setting in (one.name for one in dataclasses.fields(field)):
        value = getattr(field, setting)
        if value is not None and (setting == "default" or value != getattr(usual, setting)):
            settings[setting] = _plain(value)
    try:
        json.dumps(settings)
    except TypeError as error:
        raise ConfigError(f"fields: {name!r} is {field!r}, which can't be stored ({error}); leave that out") from error
    return settings


def _plain(value: Any) -> Any:
    if isinstance(value, Pad):
        return {"pad": dataclasses.asdict(value)}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return {"bytes": value.decode("latin-1")} if isinstance(value, bytes) else value


def schema_from_json(document: Any) -> Schema:
    """The schema that was made such a document of. Raises ConfigError for any other."""
    try:
        return Schema({name: _field(entry) for name, entry in document.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the stored fields can't be used ({type(error).__name__}: {error})") from error


def _field(entry: Mapping[str, Any]) -> Field:
    settings = {name: _value(value) for name, value in entry.items() if name != "kind"}
    return KINDS[entry["kind"]](**settings)


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "pad" in value:
        return Pad(**value["pad"])
    return value["bytes"].encode("latin-1") if "bytes" in value else np.array(value["array"], value["dtype"])
