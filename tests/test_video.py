"""Clips of videos: which frames are drawn, that all get the same, and where the frames lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from tars import jpeg
from torchvision.transforms import v2
from videos import EVAL, EVEN, FIELDS, batches, told, write_videos

import gpupipe
from gpupipe import Boxes, Frames, Image, Scalar
from gpupipe.batch.schema import Schema
from gpupipe.batch.stored import schema_from_json, schema_to_json
from gpupipe.plan import clips
from gpupipe.sources import open_source
from gpupipe.tools.cli import main
from gpupipe.tools.pack import pack
from gpupipe.tools.showing.cards import cards_of
from gpupipe.tools.showing.shown import read_shown

TRAIN = gpupipe.imagenet_train(32)
POSITIONS = np.arange(2000, dtype=np.int64)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_videos(tmp_path_factory.mktemp("videos"))


# Which frames.


def frames_of(field: Frames, count: int, epoch: int = 0) -> np.ndarray:
    """Those of all POSITIONS, of videos of so many frames, (positions, frames)."""
    draw = clips(field, 3, epoch, POSITIONS)
    return np.stack([draw(row, count, None) for row in range(len(POSITIONS))])


def test_a_random_clip_begins_anywhere_alike_and_keeps_its_stride():
    drawn = frames_of(Frames(clip=(4, 3)), 31)
    assert (np.diff(drawn, axis=1) == 3).all()
    starts = np.bincount(drawn[:, 0], minlength=20)
    assert len(starts) == 20  # of 31 - 4 * 3 + 1 places, as mmaction2's
    assert starts.min() > 60  # 100 each
    assert (frames_of(Frames(clip=(4, 3)), 31, epoch=1) != drawn).any()
    assert np.array_equal(clips(Frames(clip=(4, 3)), 3, 0, POSITIONS[7:9])(1, 31, None), drawn[8])


def test_several_random_clips_begin_in_parts_of_their_own():
    drawn = frames_of(Frames(clip=(2, 4), clips=3), 37).reshape(-1, 3, 2)
    begins = drawn[:, :, 0]
    assert (drawn[:, :, 1] - begins == 4).all()
    for clip in range(3):  # 30 places, 10 each
        assert set(begins[:, clip]) == set(range(10 * clip, 10 * clip + 10))


def test_segments_give_one_frame_of_each_part_as_tsn():
    drawn = frames_of(Frames(clip=(5, None)), 43)
    for part in range(5):
        assert set(drawn[:, part]) == set(range(8 * part, 8 * part + 8))
    few = frames_of(Frames(clip=(5, None)), 3)[0]
    assert few.tolist() == [0, 1, 1, 2, 2]  # around(i * 3 / 5)
    middles = frames_of(Frames(clip=(5, None), sampling="even"), 43)
    assert (middles == [int(43 / 5 / 2 + 43 / 5 * part) for part in range(5)]).all()


def test_even_clips_are_those_of_a_test():
    assert frames_of(Frames(clip=(3, 2), sampling="even"), 20)[0].tolist() == [7, 9, 11]  # (20 - 5) // 2
    ten = frames_of(Frames(clip=(3, 2), clips=4, sampling="even"), 20)[0].reshape(4, 3)
    assert ten[:, 0].tolist() == [0, 5, 10, 15]
    assert (np.diff(ten, axis=1) == 2).all()


def test_a_short_video_is_refused_or_loops():
    with pytest.raises(ValueError, match=r"it has 9 frames, and a clip of clip=\(4, 3\) spans 10; short='loop'"):
        clips(Frames(clip=(4, 3)), 0, 0, POSITIONS[:1])(0, 9, None)
    assert clips(Frames(clip=(4, 3)), 0, 0, POSITIONS[:1])(0, 10, None).tolist() == [0, 3, 6, 9]
    assert clips(Frames(clip=(4, 3), short="loop"), 0, 0, POSITIONS[:1])(0, 9, None).tolist() == [0, 3, 6, 0]
    with pytest.raises(ValueError, match="it has no frames"):
        clips(Frames(clip=(4, None), short="loop"), 0, 0, POSITIONS[:1])(0, 0, None)


def test_clips_by_time_are_slowfasts_and_pytorchvideos():
    field = Frames(clip=(8, 8), fps=30)
    for rate, length in ((30.0, 64), (25.0, 53), (60.0, 128), (2.0, 4)):
        drawn = np.stack([clips(field, 3, 0, POSITIONS)(row, 200, rate) for row in range(500)])
        window = torch.linspace(0, length - 1, 8).long().numpy()  # UniformTemporalSubsample of so many frames
        assert (drawn - drawn[:, :1] == window).all()
        assert drawn[:, 0].max() <= 200 - length
    with pytest.raises(ValueError, match=r"it has 52 frames, and a clip of clip=\(8, 8\) spans 53"):
        clips(field, 3, 0, POSITIONS)(0, 52, 25.0)
    with pytest.raises(gpupipe.ConfigError, match="fps=30 is for video files"):
        clips(field, 3, 0, POSITIONS)(0, 100, None)


def test_draws_do_not_change():
    """They are part of saved runs."""
    golden = clips(Frames(clip=(2, 5), clips=6), 11, 2, np.array([0, 1, 1 << 40]))
    assert [golden(row, 1000, None).reshape(6, 2)[:, 0].tolist() for row in range(3)] == GOLDEN


GOLDEN = [[63, 213, 461, 538, 804, 978], [162, 256, 489, 583, 774, 856], [108, 223, 449, 601, 715, 936]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": (8,)}, r"clip=\(8,\) must be two numbers"),
        ({"clip": (0, 1)}, "frames"),
        ({"clip": (8, 0)}, "stride"),
        ({"clip": (3, None), "clips": 2}, "clips=2 is for a clip with a stride"),
        ({"clips": 0}, "clips"),
        ({"fps": 0}, "fps=0 must be above 0"),
        ({"fps": 30, "clip": (3, None)}, "fps=30 must be above 0, with a stride"),
        ({"sampling": "dense"}, "sampling='dense' must be one of random, even"),
        ({"short": "pad"}, "short='pad' must be one of"),
        ({"collate": "list"}, "collate"),
    ],
)
def test_settings_that_can_not_work_are_refused(settings, message):
    with pytest.raises(gpupipe.ConfigError, match=message):
        Frames(**settings)


def test_a_schema_of_clips_is_stored_and_told_apart():
    schema = Schema(FIELDS)
    stored = json.loads(json.dumps(schema_to_json(schema)))
    assert schema_from_json(stored)["video"] == FIELDS["video"]
    assert schema.fingerprint != Schema({**FIELDS, "video": EVEN}).fingerprint


# What comes out.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_clip_has_the_frames_that_are_drawn(videos, workers):
    draw = clips(FIELDS["video"], 7, 0, np.arange(6))
    (first, *_), made = (batches(videos, num_workers=workers, shuffle=False) for _ in range(2))
    assert first["video"].shape == (2, 4, 3, 32, 32)
    clips_made = torch.cat([batch["video"] for batch in made])
    for row in range(6):
        assert told(clips_made[row]) == [(row, number) for number in draw(row, 14 + row % 3, None)]
    assert torch.cat([batch["label"] for batch in made]).tolist() == [0, 0, 0, 1, 1, 1]
    assert made[0]["key"] == ["class0/video0", "class0/video1"]


def test_each_frame_is_cropped_as_torchvision_does(tmp_path):
    frames = [picture(50, 70, seed) for seed in range(10)]
    for number, frame in enumerate(frames):
        path = tmp_path / "a" / "b" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(frame, "PNG"))
    (batch,) = batches(tmp_path, fields={"video": EVEN, "label": Scalar()}, batch_size=1)
    import PIL.Image

    wanted = v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.PILToTensor()])
    for clip, number in zip(batch["video"][0], (0, 3, 6, 9), strict=True):
        assert torch.equal(clip, wanted(PIL.Image.fromarray(frames[number])))


class Same:
    """Videos each of one frame, again and again: its bytes or pixels."""

    def __init__(self, kind: str, frames: int) -> None:
        self.kind = kind
        self.frames = frames

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, int]:
        frame = picture(60, 80, index)
        if self.kind == "pixels":
            return (np.stack([frame] * self.frames) if self.frames else frame), index
        data = encode(frame, quality=90)
        return ([data] * self.frames if self.frames else data), index


HEAVY = gpupipe.Recipe(
    (
        gpupipe.RandomResizedCrop(32),
        gpupipe.RandomHorizontalFlip(),
        gpupipe.RandAugment(),
        gpupipe.ColorJitter(0.4, 0.4, 0.4, 0.1),
        gpupipe.Normalize((0.45,) * 3, (0.225,) * 3),
        gpupipe.RandomErasing(0.5, value="random"),
        gpupipe.MixUp(num_classes=6),
    )
)


@pytest.mark.parametrize("kind", ["bytes", "pixels"])
def test_all_frames_of_a_clip_get_what_an_image_gets(kind):
    """Crop, flip, program, erasing and mixing are those of an image in its place, to the bit."""
    fields = {"image": Image(), "label": Scalar(dtype="int64")}
    images = batches(Same(kind, 0), HEAVY, fields)
    of_clips = batches(Same(kind, 12), HEAVY, {**fields, "image": Frames(clip=(3, 2), clips=2)})
    for (image, label), batch in zip(images, of_clips, strict=True):
        assert torch.equal(batch["label"], label)
        for clip in batch["image"]:
            assert clip.shape == (2, 3, 3, 32, 32)
            for frame in clip.unbind(1):
                assert torch.equal(frame, image)


def test_several_views_of_several_clips_come_clip_by_clip(videos):
    views = gpupipe.MultiCrop((EVAL, gpupipe.imagenet_eval(24, resize=40, dtype="uint8")))
    fields = {"video": Frames(clip=(4, 2), clips=3, sampling="even"), "label": Scalar()}
    first = batches(videos, views, fields, shuffle=False)[0]
    assert [tuple(view.shape) for view in first["video"]] == [(2, 4, 3, 32, 32), (2, 4, 3, 24, 24)] * 3
    for at, start in enumerate((0, 4, 7)):  # of 14 frames, and 7 a clip
        for view in first["video"][2 * at : 2 * at + 2]:
            assert told(view[0]) == [(0, start + 2 * number) for number in range(4)]
    merged = gpupipe.mean_over_views(view.float().mean(dim=(1, 3, 4)) for view in first["video"])
    assert merged.shape == (2, 3)


def test_channels_first_is_pytorchvideos_order(videos):
    plain = batches(videos, gpupipe.imagenet_eval(32, resize=40, layout="channels_last"))
    first = batches(
        videos,
        gpupipe.imagenet_eval(32, resize=40, layout="channels_last"),
        {**FIELDS, "video": Frames(clip=(4, 3), channels="first")},
    )
    for one, other in zip(plain, first, strict=True):
        assert torch.equal(one["video"].permute(0, 2, 1, 3, 4), other["video"])
        assert other["video"].is_contiguous(memory_format=torch.channels_last_3d)


def test_clips_are_the_same_after_a_resume_and_on_any_number_of_ranks(videos):
    source = open_source(videos, fields=FIELDS)
    options: dict[str, Any] = {"num_workers": 0, "engine": "torch", "seed": 5}
    whole = list(gpupipe.Loader(source, TRAIN, 2, **options))
    loader = gpupipe.Loader(source, TRAIN, 2, **options)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    resumed = gpupipe.Loader(source, TRAIN, 2, **options)
    resumed.load_state_dict(state)
    for one, other in zip(whole[1:], resumed, strict=True):
        assert torch.equal(one["video"], other["video"])
    ranks = [list(gpupipe.Loader(source, TRAIN, 1, rank=rank, world_size=2, **options)) for rank in range(2)]
    for step, batch in enumerate(whole):
        assert torch.equal(batch["video"], torch.cat([part[step]["video"] for part in ranks]))


def test_a_box_follows_its_clips_crop():
    """One box a clip, as of its key frame."""

    class Boxed(Same):
        def __getitem__(self, index: int) -> Any:
            frames, _ = super().__getitem__(index)
            return frames, np.array([[10, 10, 50, 40]], np.float32)

    (batch, *_) = batches(Boxed("bytes", 12), EVAL, {"video": EVEN, "boxes": Boxes(collate="stack")})
    scale = 40 / 60  # the whole is 40 x 53, of which 32 x 32 lie 4 and 10 in (torchvision's rounding)
    left, top = round((53 - 32) / 2), 4
    wanted = [10 * 53 / 80 - left, 10 * scale - top, 50 * 53 / 80 - left, 40 * scale - top]
    torch.testing.assert_close(batch["boxes"][0, 0], torch.tensor(wanted).clamp(0, 32), atol=1e-3, rtol=0)


# Bad videos.


def broken(root: Path, how: str) -> None:
    folder = root / "class0" / "video1"
    if how == "short":
        for path in folder.glob("*1?.jpg"):
            path.unlink()
    elif how == "empty":
        for path in folder.iterdir():
            path.unlink()
    elif how == "gone":
        for path in [*folder.iterdir()]:
            path.unlink()
        folder.rmdir()
    elif how == "damaged":
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes()[:200])
    else:
        (folder / "img_1.jpg").write_bytes(jpeg(1, 20, 20))
        for path in folder.glob("img_?.jpg"):
            path.write_bytes(jpeg(1, 20, 20))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("short", r"has 9 frames, and a clip of clip=\(4, 3\) spans 10"),
        ("empty", "its folder has no images, but nothing at all"),
        ("gone", r"has no .video. \(there is no video file and no folder of this name in"),
        ("damaged", r"frame \d+: the image can't be decoded|frame \d+: not a readable image"),
        ("sizes", r"frame \d+ has (20 x 20|48 x 64) pixels, frame \d+ (20 x 20|48 x 64)"),
    ],
)
def test_a_bad_video_is_a_bad_sample_with_its_name(tmp_path, how, message):
    source = open_source(write_videos(tmp_path), fields={**FIELDS, "video": Frames(clip=(4, 3), sampling="even")})
    broken(tmp_path, how)
    with pytest.raises(gpupipe.SampleError, match=message) as raised:
        list(gpupipe.Loader(source, EVAL, 2, num_workers=0, engine="torch", shuffle=False, on_error="raise"))
    assert raised.value.index == 1
    assert raised.value.location == str(tmp_path / "class0" / "video1")
    loader = gpupipe.Loader(source, EVAL, 2, num_workers=0, engine="torch", shuffle=False, on_error="skip")
    assert told(next(iter(loader))["video"][1])[0][0] == 2
    assert [bad.index for bad in loader.bad_samples] == [1]


# DALI.

DALI: list[dict[str, Any]] = [
    {"engine": "dali", "num_workers": 1},
    {"engine": "dali", "num_workers": 2, "decoders": gpupipe.Decoders(cpu_share=0.4, cpu_workers=1)},
]


@pytest.mark.parametrize("engine", DALI)
@pytest.mark.parametrize("kind", ["bytes", "pixels"])
def test_dali_makes_the_same_clips(kind, engine):
    """Pixels differ by what they do of an image; each frame of a clip is the same."""
    views = gpupipe.MultiCrop((gpupipe.imagenet_train(32, dtype="uint8"), EVAL))
    fields = {"video": Frames(clip=(3, 2), clips=2), "label": Scalar()}
    ours = batches(Same(kind, 12), views, fields, batch_size=4)
    for batch, other in zip(ours, batches(Same(kind, 12), views, fields, batch_size=4, **engine), strict=True):
        assert torch.equal(batch["label"], other["label"])
        for clip, made in zip(batch["video"], other["video"], strict=True):
            assert clip.shape == made.shape
            difference = (clip.float() - made.float()).abs()
            assert difference.mean() < 0.6
            assert torch.equal(made, made[:, :1].expand_as(made))


def test_dali_names_a_broken_video_and_goes_on(tmp_path):
    source = open_source(write_videos(tmp_path), fields={**FIELDS, "video": EVEN})
    broken(tmp_path, "damaged")
    loader = gpupipe.Loader(source, EVAL, 2, num_workers=1, engine="dali", shuffle=False, on_error="skip")
    made = torch.cat([batch["video"] for batch in loader])
    assert [told(clip)[0][0] for clip in made] == [0, 2, 2, 3, 4, 5]
    assert [bad.index for bad in loader.bad_samples] == [1]


def test_dali_takes_as_many_frames_of_each_field():
    fields = {"video": Frames(clip=(3, 2)), "image": Image()}
    with pytest.raises(gpupipe.ConfigError, match=r"image fields have \{'video': 3, 'image': None\} frames"):
        batches(Same("bytes", 12), EVAL, fields, engine="dali", num_workers=1)


# `gpupipe show`.


@pytest.mark.parametrize("channels", ["second", "first"])
def test_clips_are_shown_as_strips_a_line_each(videos, channels):
    field = Frames(clip=(3, 2), clips=2, sampling="even", channels=channels)
    views = gpupipe.MultiCrop((EVAL, gpupipe.imagenet_eval(24, resize=40, dtype="uint8")))
    source = open_source(videos, fields={"video": field, "label": Scalar()})
    loader = gpupipe.Loader(source, views, 2, num_workers=0, engine="torch", shuffle=False, rank=0, world_size=1)
    first, second = list(read_shown(loader, 2))
    for video, shown in enumerate((first, second)):
        for picture_of_view, side in zip(shown.pictures, (32, 24), strict=True):
            assert picture_of_view.size == (side, side)
            pixels = picture_of_view.pixels
            assert pixels.shape == (2 * side + 2, 3 * side + 4, 3)
            frames = [
                pixels[down:, right:][:side, :side] for down in (0, side + 2) for right in range(0, 3 * side, side + 2)
            ]
            clip = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
            last = 14 + video - 5
            assert told(clip) == [(video, number) for start in (0, last) for number in range(start, start + 5, 2)]
            assert (pixels[side : side + 2] == 255).all()
    (card, _) = cards_of(loader, [first, second])
    assert card.before[0].pixels.shape == (2 * 48 + 2, 3 * 64 + 4, 3)
    assert card.after[0].drawn[0] == ("Frames", "0, 2, 4, 9, 11, 13")


def test_the_command_line_writes_the_sheet_and_the_page(videos, tmp_path):
    fields = tmp_path / "own.py"
    fields.write_text("import gpupipe\nclips = {'video': gpupipe.Frames(clip=(4, 3)), 'label': gpupipe.Scalar()}\n")
    flags = ["--fields", f"{fields}:clips", "--engine", "torch", "--count", "2", "--size", "32"]
    assert main(["show", str(videos), "-o", str(tmp_path / "a.png"), "--recipe", "kinetics_train", *flags]) == 0
    assert main(["show", str(videos), "--html", str(tmp_path / "a.html"), "--recipe", "kinetics_eval", *flags]) == 0
    page = (tmp_path / "a.html").read_text()
    assert "<b>Frames</b>: " in page
    assert page.count('<figure class="wide">') == page.count("as stored</b>") + page.count("<b>Frames</b>: ") > 0


def test_what_clips_can_not_have_is_refused(videos, tmp_path):
    own = gpupipe.PerImage(lambda image, generator: image, geometric=False, name="same")
    for operations, message in [
        ((own, *EVAL.operations), "changes whole images before their crop, which clips have one of"),
        ((gpupipe.Resize(32, max_size=64),), "'video' are clips, which have one size"),
    ]:
        with pytest.raises(gpupipe.ConfigError, match=message):
            batches(videos, gpupipe.Recipe(operations))
    with pytest.raises(gpupipe.ConfigError, match="has videos, which are not packed"):
        pack(open_source(videos, fields=FIELDS), tmp_path)


def test_operations_of_ones_own_get_each_frame_and_draw_alike_for_a_clip():
    def inverted(images, generator):
        return 255 - images

    def salted(image, generator):
        return np.where(generator.random(image.shape[:2])[..., None] < 0.5, image, 255).astype(np.uint8)

    recipe = gpupipe.Recipe(
        (
            *EVAL.operations,
            gpupipe.PerImage(salted, geometric=False),
            gpupipe.OnBatch(inverted),
        ),
        dtype="uint8",
    )
    fields = {"image": Image(), "label": Scalar()}
    images = batches(Same("bytes", 0), recipe, fields)
    made = batches(Same("bytes", 12), recipe, {**fields, "image": EVEN})
    for (image, _), batch in zip(images, made, strict=True):
        for frame in batch["image"].unbind(1):
            assert torch.equal(frame, image)
