"""What the consumer gets of a batch: a tuple, a dict, or what a dataset's own items became."""

from __future__ import annotations

from typing import Any

from gpupipe.batch import Columns, Schema
from gpupipe.errors import ConfigError
from gpupipe.recipe import MultiCrop, Recipe

__all__ = ["check_items", "handed_out", "recipe_fingerprint"]


def handed_out(schema: Schema | None, columns: Columns, views: int) -> Any:
    """(images, labels) of image and label alone, else a dict by field, with a list where there are several views.

    schema: None where the batch is what a dataset's items were collated to, the column "items".
    """
    if schema is None:
        return columns["items"]
    several = schema.per_view(views)
    order = [*schema, *(name for name in columns if name not in schema)]  # behind the fields, masks of padding
    batch = {name: _of_views(columns[name]) if name in several else columns[name] for name in order}
    return (batch["image"], batch["label"]) if schema.is_pair else batch


def _of_views(column: Any) -> Any:
    return column[0] if len(column) == 1 else list(column)


def check_items(recipe: Any, fields: Any, collate_fn: Any, engine: str) -> None:
    """Raise ConfigError for arguments that do not go with a recipe, or with none."""
    if recipe is not None:
        if collate_fn is not None:
            raise ConfigError(
                "collate_fn goes with recipe=None, where a dataset's items are batched as they are; with a recipe each "
                "field has its own: fields={'name': gpupipe.Array(collate=function)}"
            )
        return
    if fields is not None:
        raise ConfigError(
            "fields go with a recipe, which says what becomes of the images; without one a dataset's items are batched "
            "as they are: leave fields out, or pass a recipe such as gpupipe.imagenet_eval(224)"
        )
    if engine == "dali":
        raise ConfigError("engine='dali' decodes images by a recipe; without one pass engine='torch' or 'auto'")


def recipe_fingerprint(recipe: Recipe | MultiCrop | None, schema: Schema | None) -> str:
    """What a state keeps of what is done to the samples: of image and label the recipe's own, as before schemas."""
    parts = [part.fingerprint for part in (recipe, schema) if part is not None]
    return "|".join(part for part in parts if part)
