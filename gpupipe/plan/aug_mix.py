"""AugMix, torchvision's and timm's: shares of an image and of what chains of operations make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Op
from gpupipe.kernels.philox import uniform
from gpupipe.plan.elementary import log
from gpupipe.plan.policies import COLORS, MOVES, NARROW, sign_of, table
from gpupipe.plan.steps import Kind, Size, Steps, Words, affine_op, beside, single
from gpupipe.plan.stream import below
from gpupipe.plan.timm_policy import filters, picked
from gpupipe.recipe import AugMix, TimmAugMix

__all__ = ["KINDS"]

STRENGTHS = 10
DEEPEST = 3  # of a depth that is drawn
PAPERS = (*MOVES, "Posterize", "Solarize", "AutoContrast", "Equalize")
SPACE = replace(NARROW, names=(*PAPERS, *COLORS), share=1 / 3, bits=4)
TRANSLATE = 0.3  # which timm's create_transform gives it, where RandAugment has 0.45
TIMMS = (
    *("AutoContrast", "Color", "Contrast", "Brightness", "Sharpness", "Equalize", "Rotate", "Posterize", "Solarize"),
    *("ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
)


def aug_mix(policy: AugMix, words: Words, size: Size) -> Steps:
    """A block for each chain: the image's share, the chain's, its depth; then one for each step."""
    space = SPACE if policy.all_ops else replace(SPACE, names=PAPERS)
    ops, values = table(space, STRENGTHS, size, affine_op(policy.interpolation))
    made = []
    for block in _chains(policy, words):
        which, strength = below(block[0].T, len(ops)), below(block[1].T, policy.severity)
        made.append((ops[which], values[which, strength, sign_of(block[2].T)]))
    return _mixed(policy, words, made)


def timm_aug_mix(policy: TimmAugMix, words: Words, size: Size) -> Steps:
    """The same."""
    made = []
    for block in _chains(policy, words):
        which, level = below(block[0], len(TIMMS)), policy.magnitude * uniform(block[1])
        sign = np.where(sign_of(block[2]), -1.0, 1.0)
        made.append(picked(TIMMS, which, level, sign, filters(policy.interpolation, block[3]), True, size, TRANSLATE))
    return _mixed(policy, words, made)


def _deepest(policy: AugMix | TimmAugMix) -> int:
    return policy.chain_depth if policy.chain_depth > 0 else DEEPEST


def _blocks(policy: AugMix | TimmAugMix) -> int:
    return policy.mixture_width * (1 + _deepest(policy))


def _chains(policy: AugMix | TimmAugMix, words: Words) -> Iterator[Words]:
    """The words of each chain's steps."""
    return iter(np.split(words[:, policy.mixture_width :], policy.mixture_width, axis=1))


def _mixed(policy: AugMix | TimmAugMix, words: Words, chains: Sequence[Steps]) -> Steps:
    """Each chain as deep as it is drawn to be, and the shares, which are uniform among those that add up to 1."""
    deepest, count = _deepest(policy), words.shape[2]
    own, parts = uniform(words[0, 0]), -log(uniform(words[1, : len(chains)]))
    shares = (1 - own) * parts / parts.sum(axis=0)
    every: NDArray[np.bool_] = np.ones(count, np.bool_)
    steps = [single(Op.MIX_BEGIN, every, own)]
    for number, (ops, values) in enumerate(chains):
        depth = 1 + below(words[2, number], DEEPEST) if policy.chain_depth < 1 else np.full(count, deepest)
        steps.append((np.where(np.arange(deepest) < depth[:, None], ops, np.int32(Op.IDENTITY)), values))
        steps.append(single(Op.MIX_END if number + 1 == len(chains) else Op.MIX_ADD, every, shares[number]))
    return beside(steps, count)


KINDS: dict[type, Kind] = {AugMix: Kind(26, _blocks, aug_mix), TimmAugMix: Kind(27, _blocks, timm_aug_mix)}
