"""Everything random about an image, as pure functions of (recipe, seed, epoch, positions): no state, no order.

`plan` draws boxes and flips, `augmentation` programs of operations, `erasing` boxes to erase, `mixing` partners.
"""

from __future__ import annotations

from gpupipe.draws.augmentation import Augmentation, augmentation
from gpupipe.draws.erasing import erasing
from gpupipe.draws.mixing import Mixing, mixing
from gpupipe.draws.plan import Plan, plan

__all__ = ["Augmentation", "Mixing", "Plan", "augmentation", "erasing", "mixing", "plan"]
