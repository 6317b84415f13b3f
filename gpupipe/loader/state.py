"""Where a loader stands, as a few plain values, and whether they fit another loader."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from gpupipe.batch import Schema
from gpupipe.errors import StateError
from gpupipe.order import RankBatches
from gpupipe.recipe import MultiCrop, Recipe

__all__ = ["LoaderState", "recipe_fingerprint"]

VERSION = 1
KINDS = {"version": int, "source": str, "recipe": str, "order": str, "seed": int, "global_batch": int}
KINDS |= {"drop_last": bool, "epoch": int, "position": int, "origin": int, "stream": dict}
CHANGED = "the state was changed after it was saved"

REMEDY = {
    "source": "the dataset's names, sizes or labels have changed; resume with the data that the run began with",
    "recipe": "other crops, flips or augmentations would be drawn; resume with the recipe that the run began with, "
    "and with the name and version of your own operations in it",
    "order": "the samples would come in another order; resume with the same shuffle, order and dataset size, "
    "and a sampler with the same weights or indices",
    "seed": "pass the seed that the run began with",
    "global_batch": "keep batch_size * world_size: change batch_size when the number of ranks changes; or call "
    "load_state_dict(state, allow_new_global_batch=True), and the epoch goes on in batches of the new size",
    "drop_last": "pass the drop_last that the run began with",
}


@dataclass(frozen=True)
class LoaderState:
    """Fingerprints of everything that decides the sequence of samples, and the position in it.

    position: global samples of the epoch that have been delivered over all ranks.
    origin:   where in the epoch the first batch of this size could begin; above 0 where others went before it.
    stream:   where a stream can be begun again, so as to come to that position.
    """

    source: str
    recipe: str
    order: str
    seed: int
    global_batch: int
    drop_last: bool
    epoch: int
    position: int
    origin: int = 0
    stream: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the version of this form."""
        values = {"version": VERSION, **asdict(self)}
        if self.stream is None:
            del values["stream"]
        return values

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> LoaderState:
        """The state that `as_dict` gave. Raises StateError for another version or missing fields."""
        if not isinstance(state, dict):
            raise StateError(f"state_dict: got {type(state).__name__}; pass what Loader.state_dict() returned")
        if type(state.get("version")) is not int or state["version"] != VERSION:
            raise StateError(
                f"state_dict: version is {state.get('version')!r}, this gpupipe reads {VERSION}; "
                "load it with the gpupipe version that saved it"
            )
        missing = [field.name for field in fields(cls) if field.name not in state and field.default is MISSING]
        if missing:
            raise StateError(f"state_dict: {', '.join(missing)} missing; pass what Loader.state_dict() returned")
        unknown = [name for name in state if name not in KINDS]
        if unknown:
            raise StateError(
                f"state_dict: {', '.join(map(repr, unknown))} unknown; pass what Loader.state_dict() returned, alone"
            )
        for name, value in state.items():
            if type(value) is not KINDS[name]:
                raise StateError(f"state_dict: {name} is {value!r}, no {KINDS[name].__name__}; {CHANGED}")
        return cls(**{name: value for name, value in state.items() if name != "version"})

    def check(self, own: LoaderState, size: int, batches: RankBatches, new_global_batch: bool) -> None:
        """Raise StateError, naming the field and both values, unless a loader with the state `own` can go on here.

        size: positions of the loader's epoch. batches: how it cuts one. new_global_batch: whether that may be another.
        """
        self._check_integer("global_batch", 1, 2**62)
        self._check_integer("epoch", 0, 2**32)
        self._check_integer("position", 0, size + 1)
        self._check_integer("origin", 0, self.global_batch)
        self._check_fields(own)
        for name, remedy in REMEDY.items():
            saved, mine = getattr(self, name), getattr(own, name)
            if saved != mine and not (name == "global_batch" and new_global_batch):
                raise StateError(f"state_dict: {name} is {saved!r}, but this loader has {mine!r}; {remedy}")
        self._check_position(batches)

    def _check_fields(self, own: LoaderState) -> None:
        """Before the source, whose fingerprint is another with other fields: the index has their files' sizes."""
        saved, mine = (str(state.recipe).partition("|")[2] for state in (self, own))
        if saved != mine:
            raise StateError(
                f"state_dict: the fields differ: they are {saved or 'image and label'}, but this loader has "
                f"{mine or 'image and label'}; resume with the fields that the run began with"
            )

    def _check_integer(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value < high:
            raise StateError(f"state_dict: {name} is {value!r}, no integer in [{low}, {high}); {CHANGED}")

    def _check_position(self, batches: RankBatches) -> None:
        """That one of the state's own batches ends there."""
        own = batches.at(self.epoch)
        saved = replace(own, batch_size=self.global_batch, rank=0, world_size=1, origin=self.origin)
        if saved.delivered(saved.step_at(self.position)) != self.position:
            raise StateError(
                f"state_dict: position is {self.position}, which is no step of {self.global_batch} samples within "
                f"an epoch of {saved.delivered(len(saved))}; {CHANGED}"
            )


def recipe_fingerprint(recipe: Recipe | MultiCrop | None, schema: Schema | None) -> str:
    """What a state keeps of what is done to the samples: of image and label the recipe's own, as before schemas."""
    parts = [part.fingerprint for part in (recipe, schema) if part is not None]
    return "|".join(part for part in parts if part)
