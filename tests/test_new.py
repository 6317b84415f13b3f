"""The training scripts that `gpupipe new` writes: they run, go on where they were killed, and are clean."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from images import encode, picture, write_folder
from PIL import Image
from servers.faults import FaultServer
from tars import write_samples

import gpupipe
from gpupipe.tools.cli import main
from gpupipe.tools.scripts import writing

ROOT = Path(__file__).parent.parent
ALONE = os.environ | {"PYTHONPATH": str(ROOT)}
FEW = 12


def write_streets(root: Path) -> Path:
    """Images and masks of classes 0 to 3, and 255."""
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    for number in range(FEW):
        (root / f"images/{number}.jpg").write_bytes(encode(picture(70 + number, 80, number)))
        mask = np.full((70 + number, 80), 255, np.uint8)
        mask[5:], mask[10:40, 20:50] = 0, 1 + number % 3
        Image.fromarray(mask).save(root / f"masks/{number}.png")
    return root


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data in it."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", classes=3, per_class=6)
    write_folder(tmp_path / "both" / "train", classes=2, per_class=4)
    write_folder(tmp_path / "both" / "val", classes=2, per_class=2)
    write_streets(tmp_path / "streets")
    return tmp_path


def new(*arguments: str) -> dict[str, Any]:
    """What the script has that is written for these arguments."""
    assert main(["new", *arguments, "-o", "train.py", "--force"]) == 0
    return runpy.run_path("train.py")


def batches(script: dict[str, Any], size: int = 2) -> tuple[list[Any], list[Any]]:
    """Of an epoch, for training and for the evaluation."""
    with loaders(script, size) as (train, val):
        return list(train), list(val)


@contextmanager
def loaders(script: dict[str, Any], size: int = 2) -> Iterator[tuple[gpupipe.Loader, gpupipe.Loader]]:
    """Those that the script makes, but without processes, which take their time to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpupipe, "Loader", partial(gpupipe.Loader, num_workers=0))
        train, val = script["loaders"](size, 0, torch.device("cpu"))
    with train, val:
        yield train, val


def started(*options: str, ranks: int = 0) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    command = [sys.executable, *launcher, "train.py", "--batch-size", "2", "--epochs", "2", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ALONE, start_new_session=True
    )


def finished(*options: str, ranks: int = 0) -> list[str]:
    """The lines that the script prints."""
    with started(*options, ranks=ranks) as running:
        out, err = running.communicate(timeout=170)
    assert running.returncode == 0, err
    return out.splitlines()


def saved(path: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def equal(one: Any, other: Any) -> bool:
    """To the bit, in whatever containers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_killed_and_resumed_it_has_the_same_weights(task: str, work: Path) -> None:
    data, size = ("photos", "32") if task == "classification" else ("streets", "48")
    assert main(["new", data, "--task", task, "-o", "train.py", "--size", size]) == 0
    lines = finished("--checkpoint", "whole.pt")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]
    steps = saved("whole.pt")["step"]
    with started("--save-every", "1", "--checkpoint", "cut.pt") as running:
        deadline = time.monotonic() + 150
        while running.poll() is None and not (Path("cut.pt").exists() and saved("cut.pt")["step"] > 1):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        _, err = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL, err
    assert 1 < saved("cut.pt")["step"] < steps
    again = finished("--resume", "--checkpoint", "cut.pt")
    assert again[-1].split(",")[:2] == lines[-1].split(",")[:2]  # loss and score
    assert equal(saved("cut.pt"), saved("whole.pt"))
    nothing = "nothing left: all 2 epochs are done; raise --epochs"
    assert finished("--resume", "--checkpoint", "cut.pt") == [f"resumed from cut.pt: {nothing}"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_process_s_checkpoint_goes_on_by_two(work: Path) -> None:
    """With the same options; without batch normalisation it comes to the same weights, up to the rounding of sums."""
    write_folder(work / "more", classes=3, per_class=10)  # 12 steps an epoch
    assert main(["new", "more", "--size", "32"]) == 0
    text = Path("train.py").read_text()
    model, cut = re.compile(r"models\.get_model\(.*\)"), "\n            step += 1"
    assert model.search(text)
    assert text.count(cut) == 1
    text = model.sub("nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, CLASSES))", text)
    Path("train.py").write_text(text)
    whole = finished("--checkpoint", "whole.pt")
    Path("train.py").write_text(text.replace(cut, f"{cut}\n            if step == 5:\n                os._exit(7)"))
    with started("--save-every", "3") as running:
        running.communicate(timeout=170)
    assert running.returncode == 7
    Path("train.py").write_text(text)
    where, first, second = finished("--resume", ranks=2)
    assert where == "resumed from checkpoint.pt: epoch 1, after step 3 of 24"
    assert first == ", ".join(whole[0].split(", ")[:2])  # loss and score, and of 9 steps no images/s
    assert second.split(", ")[:2] == whole[1].split(", ")[:2]
    assert all(" images/s, " in line for line in (*whole, second))
    one, two = saved("whole.pt"), saved("checkpoint.pt")
    assert two["step"] == one["step"] == 24
    assert two["loader"] == one["loader"]
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_share_an_epoch(work: Path) -> None:
    script = new("both", "--size", "32", "--recipe", "deit3")
    lines = finished("--seed", "3", "--batch-size", "4", ranks=2)
    assert len(lines) == 2  # of one rank
    state = saved("checkpoint.pt")
    assert state["step"] == 2 * 8 // 4
    assert state["loader"]["epoch"] == 2
    score = float(lines[-1].split("top-1 ")[1].split("%")[0])
    assert score in (0, 25, 50, 75, 100)  # of four samples, each counted once
    assert not equal(state["model"], script["build_model"]().state_dict())


def test_a_checkpoint_is_not_written_over(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = new("photos", "--size", "32")
    Path("checkpoint.pt").write_bytes(b"of another run")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit, match=r"checkpoint.pt exists: pass --resume, or remove it"):
        script["main"]()
    Path("checkpoint.pt").unlink()
    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-size", "1000"])
    with pytest.raises(SystemExit, match="no batch is full with --batch-size 1000"):
        script["main"]()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SystemExit, match="--batch-size 1000: pass a multiple of 3, the processes"):
        script["main"]()


@pytest.mark.parametrize("kind", ["folder", "shards", "csv", "parquet", "url"])
def test_data_of_each_kind(kind: str, work: Path, fault_server: FaultServer) -> None:
    paths = sorted((work / "photos").glob("*/*.jpg"))
    labels = [int(path.parent.name[-1]) for path in paths]
    rows = [f"{path},{label}" for path, label in zip(paths, labels, strict=True)]
    (work / "photos.csv").write_text("\n".join(["path,class", *rows]))
    images = [path.read_bytes() for path in paths]
    pq.write_table(pa.table({"image": images, "label": labels}), "photos.parquet")
    write_samples(work / "a-0.tar", count=9)
    write_samples(work / "a-1.tar", first=9, count=9)
    fault_server.put("a-0.tar", (work / "a-0.tar").read_bytes())
    arguments = {
        "folder": ["photos"],
        "shards": ["a-{0..1}.tar"],
        "csv": ["photos.csv", "--field", "image=Image:path", "--field", "label=Scalar:class"],
        "parquet": ["photos.parquet"],
        "url": [fault_server.url + "/a-0.tar"],
    }[kind]
    script = new(*arguments, "--size", "32")
    train, val = batches(script, size=1)
    source = gpupipe.open_source(script["DATA"], fields=script.get("FIELDS"))
    found = [int(label) for _, label in train + val]
    assert sorted(found) == sorted(source.targets.tolist())  # each sample in one of the parts
    assert 0 < len(val) <= len(source) // 3
    assert script["CLASSES"] == max(found) + 1
    assert all(images.shape == (1, 3, 32, 32) for images, _ in train)


def test_what_lies_beside_is_for_the_evaluation(work: Path) -> None:
    for data in ("both", "both/train"):
        script = new(data, "--size", "32")
        assert (script["DATA"], script["VAL"]) == ("both/train", "both/val")
        assert [len(part) for part in batches(script)] == [4, 2]
    assert new("both/train", "--val", "both/train")["VAL"] == "both/train"
    shutil.copytree(work / "both" / "val" / "class_0", work / "both" / "val" / "class_7")
    assert main(["new", "both", "-o", "other.py"]) == 2
    assert not Path("other.py").exists()


@pytest.mark.parametrize(
    ("recipe", "smooths"),
    [
        *((name, True) for name in ("train", "resnet50-v2")),
        *((name, False) for name in ("timm-a1", "timm-a2", "timm-a3", "deit3", "convnext_train", "swin_train")),
    ],
)
def test_labels_are_smoothed_once(recipe: str, smooths: bool, work: Path) -> None:
    """By the loss or where they are mixed, as it was published."""
    script = new("photos", "--size", "32", "--recipe", recipe)
    assert ("label_smoothing" in Path("train.py").read_text()) == smooths
    scores, labels = torch.randn(2, 3), torch.tensor([[0.9, 0.05, 0.05], [0.3, 0.7, 0.0]])
    plain = torch.nn.functional.cross_entropy(scores, labels, label_smoothing=0.1 if smooths else 0.0)
    assert torch.equal(script["loss_of"](torch.nn.Identity(), (scores, labels)), plain)


def test_more_classes_than_the_data_has(work: Path) -> None:
    script = new("photos", "--size", "32", "--classes", "5", "--recipe", "deit3")
    train, _ = batches(script)
    assert script["CLASSES"] == 5
    assert train[0][1].shape == (2, 5)
    assert torch.isfinite(script["loss_of"](script["build_model"](), train[0]))


def test_a_class_may_be_called_train(work: Path) -> None:
    for name in ("car", "train", "test"):
        write_folder(work / "traffic", classes=1, per_class=4)
        (work / "traffic" / "class_0").rename(work / "traffic" / name)
    script = new("traffic", "--size", "32")
    assert (script["DATA"], script["CLASSES"]) == ("traffic", 3)


def test_other_classes_beside_are_an_error(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "both/val/class_1").rename(work / "both/val/moth")
    assert main(["new", "both", "-o", "train.py"]) == 2
    assert "val: both/val has other classes than the data for training" in (err := capsys.readouterr().err)
    assert "class_1, moth" in err


def test_masks_and_their_classes(work: Path) -> None:
    (work / "fields.py").write_text(
        "import gpupipe\nfields = {'photo': gpupipe.Image(folder='images'), 'kinds': gpupipe.Mask(folder='masks', "
        "suffix='.png', dtype='int64', ignore=254), 'key': gpupipe.Key()}\n"
    )
    found = new("streets", "--task", "segmentation", "--size", "48")
    assert (found["CLASSES"], found["IGNORE"]) == (4, 255)
    own = new("streets", "--fields", "fields.py:fields", "--size", "48", "--classes", "256")
    assert (own["CLASSES"], own["IGNORE"]) == (256, 254)
    assert own["FIELDS"] == runpy.run_path("fields.py")["fields"]
    train, _ = batches(own)
    assert torch.isfinite(own["loss_of"](own["build_model"](), train[0]))


def test_the_score_of_a_segmentation_is_the_mean_intersection_over_union(work: Path) -> None:
    script = new("streets", "--task", "segmentation", "--size", "48")

    class Fixed(torch.nn.Module):
        """Class 0 above, class 1 below."""

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = torch.zeros(len(images), 4, *images.shape[2:])
            scores[:, 0, :24], scores[:, 1, 24:] = 1, 1
            return {"out": scores}

    with loaders(script) as (_, val):
        score = script["evaluate"](Fixed(), val)
        masks = torch.cat([batch["mask"] for batch in val]).numpy()
    found = np.zeros_like(masks)
    found[:, 24:] = 1
    known = masks != 255
    each = [
        ((masks == k) & (found == k)).sum() / (((masks == k) | (found == k)) & known).sum()
        for k in np.union1d(masks[known], found[known])
    ]
    assert score == pytest.approx(np.mean(each), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["photos", "--task", "detection"], "task 'detection': there is no script for it yet, but for classification"),
        (["photos", "--field", "image=Image", "--field", "boxes=Boxes"], "task 'detection': "),
        (["photos", "--field", "image=Image", "--field", "text=Text"], "task 'image_text': "),
        (["photos", "--field", "clip=Frames"], "task 'video': "),
        (["photos", "--field", "image=Image"], "classification takes image and label, and the fields are image;"),
        (["photos", "--task", "segmentation"], "segmentation takes an image and a mask, and the fields are image, la"),
        (["photos", "--recipe", "dino"], "recipe 'dino' is none for classification; those are train, resnet50-v2,"),
        (["photos", "--recipe", "my.py:recipe"], "a script is begun with a preset"),
        (["streets", "--task", "segmentation", "--recipe", "train"], "recipe 'train' is none for segmentation; those"),
        (
            ["photos", "--recipe", "timm_a_train"],
            "recipe 'timm_a_train' has variants: pass one of timm-a1, timm-a2,",
        ),
        (["photos", "--recipe", "nope"], "resnet50_v2_train, swin_train (docs"),
        (["photos", "--classes", "0"], "classes=0 must be an int of 1 or more"),
        (["photos", "--classes", "-3", "--recipe", "deit3"], "classes=-3 must be an int of 1 or more"),
        (["photos", "--classes", "2"], "classes=2 is fewer than there are in FolderSource("),
        (
            ["streets", "--task", "segmentation", "--classes", "3"],
            "which are numbered up to 3; leave it out, or pa",
        ),
        (
            ["tested"],
            "tested has test and train, and no val or valid or validation: pass tested/train, of which a part is kept "
            "for the evaluation, or tested/train --val tested/test",
        ),
        (
            ["alone"],
            "alone has training, and no val or valid or validation: pass alone/training, of which a part is",
        ),
        (["nowhere"], "no folder at "),
        (["tiny"], "has too few samples to keep some for the evaluation"),
        (["photos", "-o", "train.txt"], "--output train.txt: name a Python file"),
        (["photos", "-o", "none/train.py"], "there is no folder none"),
    ],
)
def test_what_it_refuses(arguments: list[str], reason: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(work / "tiny", classes=1, per_class=1)
    shutil.copytree(work / "photos", work / "tested" / "train")
    shutil.copytree(work / "photos", work / "tested" / "test")
    shutil.copytree(work / "photos", work / "alone" / "training")
    assert main(["new", *(["-o", "train.py"] if "-o" not in arguments else []), *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not Path("train.py").exists()


def test_a_file_is_overwritten_by_force_alone(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("mine")
    assert main(["new", "photos"]) == 2  # train.py is the default
    assert "--output train.py exists: pass another name, or --force to overwrite it" in capsys.readouterr().err
    assert Path("train.py").read_text() == "mine"
    assert main(["new", "photos", "--force"]) == 0
    out = capsys.readouterr().out
    assert "train.py: classification of 3 classes (class_0, class_1, class_2), 18 samples" in out
    assert "next: python train.py --epochs 1\n" in out
    assert "python train.py --epochs 10 --resume\n" in out
    assert "Trains a classifier of 3 classes" in Path("train.py").read_text()


def scripts(work: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One for each template, with names that are hard to write down."""
    odd = "a \"b\" \\ 'c' $d {e} \N{SNOWMAN}"
    write_folder(work / odd, classes=2, per_class=4)
    written = []
    for library in ("torchvision", "timm", "torch"):
        monkeypatch.setattr(writing, "installed", lambda task, one=library: one)
        for data in ("photos", "both", odd):
            written.append(f"{library}_{len(written)}.py")
            assert main(["new", data, "-o", written[-1], "--recipe", "timm-a1"]) == 0
        if library != "timm":
            written.append(f"{library}_{len(written)}.py")
            assert main(["new", "streets", "--task", "segmentation", "-o", written[-1]]) == 0
    return written


def test_scripts_are_clean(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = scripts(work, monkeypatch)
    assert len(written) == 11
    assert max(len(Path(name).read_text().splitlines()) for name in written) <= 185
    for name in written:
        compile(Path(name).read_text(), name, "exec")
        assert "bench" not in Path(name).read_text()
    if shutil.which("ruff") is None:
        pytest.skip("ruff is not installed")
    for command in (["check", "--select", "E4,E7,E9,F,I,B,UP,SIM,RUF100"], ["format", "--check"]):
        done = subprocess.run(
            ["ruff", command[0], "--isolated", *command[1:], *written], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scripts_have_sound_types(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    written = [str(work / name) for name in scripts(work, monkeypatch)]
    done = subprocess.run([sys.executable, "-m", "mypy", *written], cwd=ROOT, capture_output=True, text=True, env=ALONE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("library", ["torch", "timm"])
@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_models_of_what_is_installed(library: str, task: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    missing = {"torch": ("torchvision", "timm"), "timm": ("torchvision",)}[library]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else there(name))
    if library == "timm" and there("timm") is None:
        pytest.skip("timm is not installed")
    script = new("photos" if task == "classification" else "streets", "--task", task, "--size", "32")
    assert ("timm" in script) == (library == "timm" and task == "classification")
    assert "models" not in script
    train, _ = batches(script)
    assert torch.isfinite(script["loss_of"](script["build_model"](), train[0]))


def test_the_written_settings_are_the_fields(work: Path) -> None:
    fields = {
        "image": gpupipe.Image("jpg;png", collate=gpupipe.Pad(0.5, 32, mask=True), background=(1, 2, 3)),
        "boxes": gpupipe.Boxes("json:boxes", labels=("classes",), min_area=2.5),
        "classes": gpupipe.Array("json:classes", dtype="int64", missing="default", default=7),
    }
    code = {name: writing._code(name, field) for name, field in fields.items()}
    assert json.dumps(code)
    for name, field in fields.items():
        assert eval(code[name], {"gpupipe": gpupipe}) == field  # what the script says
    with pytest.raises(gpupipe.ConfigError, match=r"fields: 'text' has <function .* can't be written down"):
        writing._code("text", gpupipe.Text(tokenizer=lambda texts: texts))
