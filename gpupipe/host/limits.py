"""What one image may cost a process."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gpupipe.host.checks import whole

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What decoding one image may cost; one that would cost more is a bad sample, on every engine alike.

    It is decided before any decoder sees the file, from its header and the segments of a JPEG: by what that of the
    CPU's decoders needs which needs most, on whatever part of the image is wanted. What the defaults mean was measured
    on a core of an Intel Xeon, one image in a process of its own:

    max_pixels: height times width; Pillow's error limit, which may be set lower by `PIL.Image.MAX_IMAGE_PIXELS` (twice
                that). For more it has to be set, too, in every process.
    max_memory: bytes at the peak, in each worker. 1.5 GiB are a JPEG of any size that is allowed (7 bytes a pixel), of
                161 megapixels where EXIF turns it (10; without DALI 4), of 120 to 160 where it is progressive (3 to 6
                more), of 134 in CMYK (12); a PNG, WebP, TIFF, GIF or BMP of 146 (11), of 89 with 32 bits a channel or
                with alpha over a `background` (18); a JPEG 2000 or AVIF of 80 (20).
    max_scans:  of a progressive file. Usual ones have 10.
    max_work:   blocks of 8 x 8 pixels that a JPEG's scans go through, all channels and scans together; those of
                arithmetic coding count 64 times. 2**26 take 0.5 s (7 ns each) besides what is coded in them. Usual
                progressive files of 100 megapixels have 12 to 22 million, of 100 scans files of 43 in gray too many.

    Else pixels bound the time, at 10 to 55 ns each: 5 s for 178 megapixels of a turned JPEG, 4 for 80 of a JPEG 2000.
    """

    max_pixels: int = 178_956_970
    max_memory: int = 3 << 29
    max_scans: int = 100
    max_work: int = 1 << 26

    def __post_init__(self) -> None:
        for field in fields(self):
            below = 2**31 if field.name == "max_scans" else 2**62
            value = whole(f"Limits: {field.name}", getattr(self, field.name), 0, below)
            object.__setattr__(self, field.name, value)
