"""Which stage holds training up, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpupipe.host.system import usable_cpus
from gpupipe.tools.profiling.rounds import CONFIDENCE, Profile

__all__ = ["NOTICEABLE", "Bottleneck", "judge"]

NOTICEABLE = 0.05  # smaller shares and gains are not worth acting on


Loading = Literal["read", "storage", "decode", "finish"]


@dataclass(frozen=True)
class Bottleneck:
    """The stage that holds training up, why, and what to do: one sentence each."""

    stage: Loading | Literal["model", "unclear"]
    reason: str
    advice: str


def judge(profile: Profile) -> Bottleneck:
    """The bottleneck, from the medians of the rounds and from what they leave open.

    model:   a perfect loader would make training less than 5% faster.
    finish:  else, where the consumer's thread finished batches for longer than it waited for the engine.
    read, decode: else, whichever the engine spent more time on.
    storage: in the place of read, where most of that was waiting for an object storage.
    unclear: where the waits of the model's device don't bear the gain out, and it may be none with 95% confidence; or
             where they say that there should be one.

    Where the model's device waited less than 5% of the time, and yet a perfect loader would be faster, the two share
    CPUs or the GPU: then it is the longest of read, decode and finish.
    """
    gain, known = profile.speedup - 1, profile.known
    waits = profile.waited >= NOTICEABLE
    if known.high - 1 < NOTICEABLE or (gain < NOTICEABLE and not waits):
        return _model(profile)
    if gain >= NOTICEABLE and (waits or (known.low > 1 and known.confidence >= CONFIDENCE)):
        return _loading(profile)
    reason = (
        f"the model waited {profile.waited:.0%} of the time, and the rounds differ too much ({known.low:.2f} to "
        f"{known.high:.2f} times as fast) or are too few ({len(profile.real)}) to tell what a perfect loader would gain"
    )
    return Bottleneck("unclear", reason, "measure again while nothing else runs on this machine, or for more --minutes")


def _model(profile: Profile) -> Bottleneck:
    gain, most = max(profile.speedup - 1, 0), max(profile.known.high - 1, 0)
    reason = f"a perfect loader would make training {gain:.0%} faster, at most {most:.0%}, so the loader keeps up"
    return Bottleneck("model", reason, "leave the loader as it is: only a faster training step would help")


def _loading(profile: Profile) -> Bottleneck:
    stage, waited = _loading_stage(profile), f"{profile.waited:.0%} of the time"
    if profile.waited < NOTICEABLE:
        shared = "the CPUs" if profile.device == "cpu" else "the GPU"
        why = f"the model waited only {waited}, but shares {shared} with the loader"
    else:
        why = f"the model waited {waited}"
    return Bottleneck(stage, f"{why}; {_times(profile)}", _advice(profile, stage))


def _loading_stage(profile: Profile) -> Loading:
    read, decode, finish, wait = (profile.per_batch(name) for name in ("read", "decode", "finish", "wait"))
    shares = profile.waited < NOTICEABLE
    if profile.engine == "dali" and shares:
        return "decode"  # on DALI's own threads or the GPU, which tell no times
    if finish > (max(read, decode) if shares else wait):
        return "finish"
    if read <= decode:
        return "decode"
    return "storage" if profile.per_batch("storage") > read / 2 else "read"


def _times(profile: Profile) -> str:
    read, decode, finish = (f"{1000 * profile.per_batch(name):.3g} ms" for name in ("read", "decode", "finish"))
    if waited := profile.per_batch("storage"):
        read = f"{read} ({1000 * waited:.3g} ms of it waiting for the storage)"
    if profile.engine == "dali":
        return f"a batch took {read} to fetch and a wait of {decode} for DALI"
    return f"a batch takes {read} to read, {decode} to decode and {finish} to finish"


def _advice(profile: Profile, stage: Loading) -> str:
    if stage == "finish":
        return "take dtype='uint8' in the recipe and normalize in the model, on its device"
    if stage == "decode":
        return _decode_advice(profile)
    if stage == "storage":
        return (
            "give the disk cache more room, of which several epochs and runs have something (gpupipe plan DATA says "
            "how much), run nearer to the storage or with more bandwidth, or shrink the images once (gpupipe pack SRC "
            "DST --max-size 400)"
        )
    return (
        "pack the dataset into shards on a local disk (gpupipe pack SRC DST), or raise --workers so that more reads "
        "wait at the same time"
    )


def _decode_advice(profile: Profile) -> str:
    workers, cpus = profile.settings.workers, usable_cpus()
    if workers < cpus and profile.waited >= NOTICEABLE:
        return f"raise --workers from {workers} to {cpus}, the CPUs that this process may use"
    return (
        "shrink the images once (gpupipe pack SRC DST --max-size 400), use decode='fast' in the recipe where they are "
        "several times larger than the output, or give the process more CPUs"
    )
