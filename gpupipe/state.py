"""Where a loader stands, as a few plain values, and whether they fit another loader."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from gpupipe.errors import StateError

__all__ = ["LoaderState"]

VERSION = 1

REMEDY = {
    "source": "the dataset's names, sizes or labels have changed; resume with the data that the run began with",
    "recipe": "other crops, flips or augmentations would be drawn; resume with the recipe that the run began with",
    "order": "the samples would come in another order; resume with the same shuffle, order and dataset size",
    "seed": "pass the seed that the run began with",
    "global_batch": "keep batch_size * world_size: change batch_size when the number of ranks changes",
    "drop_last": "pass the drop_last that the run began with",
}


@dataclass(frozen=True)
class LoaderState:
    """Fingerprints of everything that decides the sequence of samples, and the position in it.

    position: global samples of the epoch that have been delivered over all ranks.
    """

    source: str
    recipe: str
    order: str
    seed: int
    global_batch: int
    drop_last: bool
    epoch: int
    position: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the version of this form."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> LoaderState:
        """The state that `as_dict` gave. Raises StateError for another version or missing fields."""
        if not isinstance(state, dict):
            raise StateError(f"state_dict: got {type(state).__name__}; pass what Loader.state_dict() returned")
        if state.get("version") != VERSION:
            raise StateError(
                f"state_dict: version is {state.get('version')!r}, this gpupipe reads {VERSION}; "
                "load it with the gpupipe version that saved it"
            )
        missing = [field.name for field in fields(cls) if field.name not in state]
        if missing:
            raise StateError(f"state_dict: {', '.join(missing)} missing; pass what Loader.state_dict() returned")
        return cls(**{field.name: state[field.name] for field in fields(cls)})

    def check(self, own: LoaderState, positions: int, steps: int) -> None:
        """Raise StateError, naming the field and both values, unless a loader with the state `own` can go on here.

        positions, steps: of the loader's epoch.
        """
        for name, limit in (("epoch", 2**32), ("position", 2**62)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < limit:
                raise StateError(f"state_dict: {name} is {value!r}, no integer from 0 on; the state was changed")
        for name, remedy in REMEDY.items():
            saved, mine = getattr(self, name), getattr(own, name)
            if saved != mine:
                raise StateError(f"state_dict: {name} is {saved!r}, but this loader has {mine!r}; {remedy}")
        last = min(steps * self.global_batch, positions)
        if not 0 <= self.position <= last or (self.position % self.global_batch and self.position != last):
            raise StateError(
                f"state_dict: position is {self.position}, which is no step of {self.global_batch} samples within "
                f"an epoch of {last}; the state was changed after it was saved"
            )
