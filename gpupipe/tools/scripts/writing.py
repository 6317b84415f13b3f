"""A training script as text: templates, filled with what is known of the data."""

from __future__ import annotations

import importlib.util
from dataclasses import fields as settings_of
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from gpupipe.batch import Field, Mask, Pad
from gpupipe.errors import ConfigError
from gpupipe.texts import printable
from gpupipe.tools.scripts.facts import Facts

__all__ = ["installed", "script"]

NAMED = 8  # classes in the comment beside their number
SCORES = {"classification": "top-1", "segmentation": "mean IoU"}
MODELS = {"classification": ("torchvision", "timm"), "segmentation": ("torchvision",)}
TORCH = "import torch\nimport torch.distributed as dist\nfrom torch import nn"
IMPORTS = {
    "torchvision": f"import gpupipe\n{TORCH}\nfrom torchvision import models",
    "timm": f"import gpupipe\nimport timm\n{TORCH}",
    "torch": f"import gpupipe\n{TORCH}",
}


def installed(task: str) -> str:
    """The library whose models the script takes: the first one that is installed, else torch alone."""
    return next((name for name in MODELS[task] if importlib.util.find_spec(name) is not None), "torch")


def script(facts: Facts, recipes: tuple[str, str], library: str, name: str, smoothing: float = 0.0) -> str:
    """The whole script. recipes: calls that make those of training and evaluation; library: see `installed`; name: the
    script's own file; smoothing: of a classifier's labels, by its loss."""
    beside = facts.val is not None
    loaders = "loaders_beside" if beside else "loaders_split"
    given = "" if facts.fields is None else (', "fields": FIELDS' if beside else ", fields=FIELDS")
    task = _filled(facts.task, model=_filled(f"{facts.task}_{library}"), **_settings(facts, smoothing))
    text = _filled(
        "train",
        title=_title(facts),
        script=name,
        imports=IMPORTS[library],
        data=_literal(facts.data),
        constants="\n".join(_constants(facts)),
        train=recipes[0],
        eval=recipes[1],
        batch_size=str(facts.batch_size),
        task=task,
        loaders=_filled(loaders, fields=given, stratify=", stratify=True" if facts.stratify else ""),
        score=SCORES[facts.task],
    )
    return f"{text}\n"


def _filled(template: str, **parts: str) -> str:
    text = (files("gpupipe.tools.scripts") / "templates" / f"{template}.tmpl").read_text(encoding="utf-8")
    return Template(text).substitute(parts).strip("\n")


def _title(facts: Facts) -> str:
    data = facts.data if isinstance(facts.data, str) else facts.data[0]
    what = {"classification": "a classifier", "segmentation": "segmentation"}[facts.task]
    text = printable(data, 40).replace("\\", "/").replace('"', "'")
    return f"Trains {what} of {facts.classes} classes on {facts.samples:,} samples of {text}."


def _constants(facts: Facts) -> list[str]:
    lines = [f"VAL = {_literal(facts.val)}"] if facts.val is not None else [f"PARTS = {facts.parts}"]
    if facts.fields is not None:
        lines += ["FIELDS: dict[str, gpupipe.Field] = {"]
        lines += [f"    {_literal(name)}: {_code(name, field)}," for name, field in facts.fields.items()]
        lines += ["}"]
    named = ", ".join(facts.names[:NAMED]) + (" ..." if len(facts.names) > NAMED else "")
    lines += [f"CLASSES = {facts.classes}" + (f"  # {printable(named, 60)}" if named else "")]
    if facts.task == "segmentation":
        lines += [f"IGNORE = {_mask(facts)[1].ignore}  # pixels of no class"]
    return lines


def _settings(facts: Facts, smoothing: float) -> dict[str, str]:
    """What stands in the template of a classification, or of a segmentation: there the fields' names."""
    if facts.task == "segmentation":
        return {"image": facts.schema.images[0], "mask": _mask(facts)[0]}
    return {"smoothing": f", label_smoothing={smoothing}" if smoothing else ""}


def _mask(facts: Facts) -> tuple[str, Mask]:
    return next((name, field) for name, field in facts.schema.items() if isinstance(field, Mask))


def _code(name: str, field: Field) -> str:
    """What makes this field. Raises ConfigError for a setting that can't be written down."""
    usual = type(field)()
    given = {one.name: getattr(field, one.name) for one in settings_of(field)}
    own = {key: value for key, value in given.items() if not _same(value, getattr(usual, key))}
    source = [_value(name, own.pop("source"))] if "source" in own else []
    parts = source + [f"{key}={_value(name, value)}" for key, value in own.items()]
    return f"gpupipe.{type(field).__name__}({', '.join(parts)})"


def _same(value: Any, usual: Any) -> bool:
    return type(value) is type(usual) and not isinstance(value, np.ndarray) and bool(value == usual)


def _value(name: str, value: Any) -> str:
    if isinstance(value, Pad):
        return f"gpupipe.Pad({value.value!r}, {value.multiple!r}, {value.mask!r})"
    if isinstance(value, tuple | list):
        return f"({', '.join(_value(name, one) for one in value)},)"
    if not isinstance(value, str | int | float | bytes | None):
        raise ConfigError(f"fields: {name!r} has {value!r:.80}, which can't be written down; leave it out, and add it")
    return _literal(value)


def _literal(value: Any) -> str:
    """As ruff writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if not isinstance(value, str):
        return repr(value)
    quote = "'" if value.count('"') > value.count("'") else '"'
    return (
        quote
        + "".join(f"\\{one}" if one == quote else one if one in "'\"" else repr(one)[1:-1] for one in value)
        + quote
    )
