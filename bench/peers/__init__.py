"""The other ways to load that `bench/run.py` measures, one file for each; nothing here imports them.

Each file has a class of the shape of `gpupipe.tools.benchmark.contenders.Contender` and, where it needs more
than `gpupipe[bench]`, a tuple `REQUIREMENTS`, which bench/run.py installs into an environment of its own.
"""

from __future__ import annotations

from gpupipe.tools.benchmark.contenders import reference

__all__ = ["FILTERS", "PEERS", "TITLES"]

SHARED = ("gpupipe-torch", "gpupipe-dali-cpu", "dali-native-cpu", "torchvision-pillow", "torchvision-v2")

FILTERS = {"ffcv": "area"}  # what the check of white noise does not tell from a triangle filter

PEERS = {
    "floor": "peers.floor:Floor",
    **{name: reference(name) for name in SHARED},
    "simplejpeg": "peers.simplejpeg_torch:SimplejpegTorch",
    "timm": "peers.timm_loader:Timm",
    "webdataset": "peers.webdataset_v2:WebDatasetV2",
    "ffcv": "peers.ffcv_jpeg:Ffcv",
    "tf-data": "peers.tf_data:TfData",
    "tf-data-antialias": "peers.tf_data:TfDataAntialias",
    "spdl": "peers.spdl_ffmpeg:Spdl",
    "mosaicml-streaming": "peers.mosaicml_streaming:MosaicmlStreaming",
    "litdata": "peers.litdata_v2:LitData",
    "grain": "peers.grain_pillow:Grain",
    "hf-datasets": "peers.hf_datasets:HfDatasets",
}

TITLES = {  # in the README
    "floor": "*floor: libjpeg-turbo decoding the crops, nothing else*",
    "gpupipe-torch": "**gpupipe, torch engine** (C++ kernels)",
    "gpupipe-dali-cpu": "gpupipe, DALI on the CPU",
    "dali-native-cpu": "hand-written DALI pipeline on the CPU",
    "torchvision-pillow": "torchvision with Pillow, DataLoader",
    "torchvision-v2": "torchvision v2 on tensors, DataLoader",
    "simplejpeg": "simplejpeg + torch resize, DataLoader",
    "timm": "timm `create_loader`",
    "webdataset": "webdataset + torchvision v2",
    "ffcv": "FFCV, quality 96 (area filter)",
    "tf-data": "tf.data (no antialiasing)",
    "tf-data-antialias": "tf.data, antialiased",
    "spdl": "SPDL (FFmpeg)",
    "litdata": "litdata + torchvision v2",
    "grain": "grain (Pillow)",
    "hf-datasets": "Hugging Face datasets",
}
