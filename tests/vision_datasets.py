"""torchvision's datasets of files with a label each, made small on disk as their archives unpack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from torchvision import datasets

MODES = ("RGB", "L", "RGB", "CMYK")


def image(path: Path, seed: int, kind: str = "JPEG") -> None:
    """One of varying size and mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = MODES[seed % 4] if kind == "JPEG" else "RGBA" if kind == "PNG" and seed % 2 else "RGB"
    path.write_bytes(encode(picture(24 + 3 * seed, 40 - 2 * seed, seed), kind, mode))


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def classes(root: Path, names: tuple[str, ...], suffix: str = "jpg", kind: str = "JPEG") -> None:
    """Class folders with two or three images each."""
    for number, name in enumerate(names):
        for place in range(2 + number % 2):
            image(root / name / f"{place}.{suffix}", 3 * number + place, kind)


def image_folder(root: Path, **options: Any) -> Any:
    classes(root, ("b", "a", "c"))
    classes(root, ("a",), "png", "PNG")
    return datasets.ImageFolder(root, **options)


def dataset_folder(root: Path, **options: Any) -> Any:
    classes(root, ("b", "a"))
    return datasets.DatasetFolder(str(root), datasets.folder.default_loader, extensions=(".jpg",), **options)


def imagenet(root: Path, **options: Any) -> Any:
    classes(root / "val", ("n01", "n02"), "JPEG")
    torch.save(({"n01": ("tench", "fish"), "n02": ("shark",)}, []), root / "meta.bin")
    return datasets.ImageNet(root, "val", **options)


def country211(root: Path, **options: Any) -> Any:
    classes(root / "country211" / "train", ("AD", "ZW"))
    return datasets.Country211(root, **options)


def eurosat(root: Path, **options: Any) -> Any:
    classes(root / "eurosat" / "2750", ("Forest", "River"))
    return datasets.EuroSAT(root, **options)


def flowers102(root: Path, **options: Any) -> Any:
    from scipy.io import savemat

    base = root / "flowers-102"
    for number in range(1, 6):
        image(base / "jpg" / f"image_{number:05d}.jpg", number)
    savemat(base / "imagelabels.mat", {"labels": np.array([3, 1, 102, 2, 3])})
    savemat(base / "setid.mat", {"trnid": np.array([5, 1, 3]), "valid": np.array([2]), "tstid": np.array([4])})
    return datasets.Flowers102(root, **options)


def food101(root: Path, **options: Any) -> Any:
    classes(root / "food-101" / "images", ("pho", "ramen"))
    text(root / "food-101" / "meta" / "train.json", json.dumps({"ramen": ["ramen/0", "ramen/2"], "pho": ["pho/1"]}))
    return datasets.Food101(root, **options)


def dtd(root: Path, **options: Any) -> Any:
    classes(root / "dtd" / "dtd" / "images", ("banded", "dotted"))
    text(root / "dtd" / "dtd" / "labels" / "train1.txt", "dotted/1.jpg", "banded/0.jpg", "dotted/0.jpg")
    return datasets.DTD(root, **options)


def fgvc_aircraft(root: Path, **options: Any) -> Any:
    base = root / "fgvc-aircraft-2013b" / "data"
    for number in range(3):
        image(base / "images" / f"00{number}.jpg", number)
    text(base / "variants.txt", "707-320", "A320 neo")
    text(base / "images_variant_trainval.txt", "002 A320 neo", "000 707-320", "001 A320 neo")
    return datasets.FGVCAircraft(root, **options)


def oxford_pets(root: Path, **options: Any) -> Any:
    base = root / "oxford-iiit-pet"
    for number, name in enumerate(("Abyssinian_1", "beagle_7", "Abyssinian_2")):
        image(base / "images" / f"{name}.jpg", number)
    text(base / "annotations" / "trainval.txt", "Abyssinian_2 1 1 1", "beagle_7 2 2 1", "Abyssinian_1 1 1 1")
    return datasets.OxfordIIITPet(root, **options)


def stanford_cars(root: Path, **options: Any) -> Any:
    from scipy.io import savemat

    base = root / "stanford_cars"
    for number in range(3):
        image(base / "cars_train" / f"{number}.jpg", number)
    (base / "devkit").mkdir()
    names = np.array([(f"{number}.jpg", number % 2 + 1) for number in range(3)], [("fname", object), ("class", "u1")])
    savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": names})
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi", "Fiat"], object)})
    return datasets.StanfordCars(root, **options)


def sun397(root: Path, **options: Any) -> Any:
    for number, name in enumerate(("a/abbey/sun_1.jpg", "a/abbey/sun_2.jpg", "z/zoo/indoor/sun_3.jpg")):
        image(root / "SUN397" / name, number)
    text(root / "SUN397" / "ClassName.txt", "/a/abbey", "/z/zoo/indoor")
    return datasets.SUN397(root, **options)


def imagenette(root: Path, **options: Any) -> Any:
    classes(root / "imagenette2" / "train", ("n01440764", "n02102040"), "jpeg")
    return datasets.Imagenette(root, **options)


def rendered_sst2(root: Path, **options: Any) -> Any:
    classes(root / "rendered-sst2" / "train", ("positive", "negative"), "png", "PNG")
    return datasets.RenderedSST2(root, **options)


def gtsrb(root: Path, **options: Any) -> Any:
    classes(root / "gtsrb" / "GTSRB" / "Training", ("00000", "00001"), "ppm", "PPM")
    return datasets.GTSRB(root, **options)


def inaturalist(root: Path, **options: Any) -> Any:
    names = ("00000_A_B_C_D_E_F_g", "00001_A_B_C_D_E_H_i")
    classes(root / "2021_train", names)
    return datasets.INaturalist(root, target_type="genus", loader=datasets.folder.default_loader, **options)


def lfw_people(root: Path, **options: Any) -> Any:
    base = root / "lfw-py"
    for number, name in enumerate(("Ann_0001", "Bob_0001", "Bob_0002")):
        image(base / "lfw_funneled" / name[:3] / f"{name}.jpg", number)
    text(base / "lfw-names.txt", "Ann 1", "Bob 2")
    text(base / "peopleDevTrain.txt", "2", "Bob\t2", "Ann\t1")
    return datasets.LFWPeople(root, split="train", **options)


def places365(root: Path, **options: Any) -> Any:
    for number in range(3):
        image(root / "val_256" / f"{number}.jpg", number)
    text(root / "categories_places365.txt", "/a/airfield 0", "/z/zen_garden 1")
    text(root / "places365_val.txt", "2.jpg 1", "0.jpg 0", "1.jpg 1")
    return datasets.Places365(root, "val", small=True, **options)


def clevr(root: Path, **options: Any) -> Any:
    base = root / "clevr" / "CLEVR_v1.0"
    classes(base / "images", ("train",), "png", "PNG")
    scenes = [{"image_filename": f"{number}.png", "objects": [{}] * (3 - number)} for number in range(2)]
    text(base / "scenes" / "CLEVR_train_scenes.json", json.dumps({"scenes": scenes}))
    return datasets.CLEVRClassification(root, **options)


FILES: list[Callable[..., Any]] = [
    *(clevr, country211, dataset_folder, dtd, eurosat, fgvc_aircraft, flowers102, food101, gtsrb, image_folder),
    *(imagenet, imagenette, inaturalist, lfw_people, oxford_pets, places365, rendered_sst2, stanford_cars, sun397),
]


@pytest.fixture
def no_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the archives' names are taken for the archives'."""
    for module in ("flowers102", "imagenet", "lfw", "places365"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *args, **options: True)
