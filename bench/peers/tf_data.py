"""tf.data: decode_and_crop_jpeg and tf.image.resize, which does not antialias unless it is asked to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import MEAN_255, RATIO, SCALE, STD_255, Peer, images

__all__ = ["TfData", "TfDataAntialias"]

REQUIREMENTS = ("tensorflow-cpu",)
PREFETCH = 2  # batches


@dataclass
class TfStream:
    """The data set's batches as NumPy arrays."""

    dataset: Any

    def __iter__(self) -> Iterator[Batch]:
        yield from self.dataset.as_numpy_iterator()

    def close(self) -> None:
        """Its threads end with the data set."""
        self.dataset = None


class TfData(Peer):
    """As in TensorFlow's ImageNet example: distorted bounding box, decode and crop in one, resize, flip."""

    name = "tf-data"
    antialias = False
    exact_passes = False  # images are handed on as they get ready

    def cycle(self, settings: BenchSettings) -> int:
        """One pipeline makes every batch."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """Its buffer, the batch behind it and the one in the making."""
        return PREFETCH + 2

    def load(self, path: Any, label: Any, settings: BenchSettings) -> tuple[Any, Any]:
        """One image: channels first and normalized, or uint8 with channels last."""
        data = tf.io.read_file(path)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            bounding_boxes=tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=SCALE,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.resize(image, [settings.size, settings.size], antialias=self.antialias)
        image = tf.image.random_flip_left_right(image)
        if settings.dtype == "uint8":
            return tf.saturate_cast(tf.round(image), tf.uint8), label
        return tf.transpose((image - MEAN_255) / STD_255, [2, 0, 1]), label

    def open(self, settings: BenchSettings) -> BatchStream:
        """Build the pipeline with `settings.threads` threads."""
        paths, labels = images(settings.data)
        options = tf.data.Options()
        options.threading.private_threadpool_size = settings.threads
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = False
        dataset = (
            tf.data.Dataset.from_tensor_slices((paths, tf.constant(labels, tf.int64)))
            .shuffle(len(paths))
            .repeat()
            .map(lambda path, label: self.load(path, label, settings), num_parallel_calls=settings.threads)
            .batch(settings.batch_size, drop_remainder=True)
            .prefetch(PREFETCH)
            .with_options(options)
        )
        return TfStream(dataset)


class TfDataAntialias(TfData):
    """The same with antialias=True."""

    name = "tf-data-antialias"
    antialias = True
