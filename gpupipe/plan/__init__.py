"""Everything random about an image, as pure functions of (recipe, seed, epoch, positions): no state, no order.

`plan` draws boxes and flips, `augmentation` programs of operations, `erasing` boxes to erase, `mixing` partners.
"""

from __future__ import annotations

from gpupipe.plan.augmentation import Augmentation, augmentation
from gpupipe.plan.crops import Plan, plan
from gpupipe.plan.erasing import erasing
from gpupipe.plan.mixing import Mixing, mixing

__all__ = ["Augmentation", "Mixing", "Plan", "augmentation", "erasing", "mixing", "plan"]
