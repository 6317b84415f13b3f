"""Everything random about an image, as pure functions of (recipe, seed, epoch, positions): no state, no order.

`cropping` draws boxes and flips, `augmentation` programs of operations, `erasing` boxes to erase, `mixing` partners,
`own_words` keys for operations of the user's own, `captions` which of several texts a sample has, `clips` which
frames of its video.
`partners` draws of which others a sample is made, `arranged` lays them out, `blending` and `pasted` say how much and
what of them is seen.
`follow_mask`, `follow_boxes` and `follow_points` apply an image's crop to what belongs to it, `moving` says how the
operations after that move it.
"""

from __future__ import annotations

from gpupipe.plan.augmentation import Augmentation, augmentation
from gpupipe.plan.captions import captions
from gpupipe.plan.clips import clips
from gpupipe.plan.crops import cropping, erasing
from gpupipe.plan.follow import box_corners, boxes_of, follow_boxes, follow_mask, follow_points
from gpupipe.plan.mixing import Mixing, mixing
from gpupipe.plan.moves import Moves, moving
from gpupipe.plan.own import own_words
from gpupipe.plan.partners import arranged, blending, partners, pasted

__all__ = [
    "Augmentation",
    "Mixing",
    "Moves",
    "arranged",
    "augmentation",
    "blending",
    "box_corners",
    "boxes_of",
    "captions",
    "clips",
    "cropping",
    "erasing",
    "follow_boxes",
    "follow_mask",
    "follow_points",
    "mixing",
    "moving",
    "own_words",
    "partners",
    "pasted",
]
