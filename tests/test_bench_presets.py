"""bench/presets.py: originals that are written here for it, what agrees with a preset and what does not, the table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from images import write_folder
from modules import bench_script

from gpupipe.host.children import ChildError
from gpupipe.kernels import native
from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings, Round

BENCH = Path(__file__).parent.parent / "bench"
STATISTICS = "(0.485, 0.456, 0.406), (0.229, 0.224, 0.225)"
SCRIPTS = {
    "dino/eval_linear.py": """
import what_is_not_here
val_transform = pth_transforms.Compose([
    pth_transforms.Resize({resize}, interpolation=3),
    pth_transforms.CenterCrop(224),
    pth_transforms.ToTensor(),
    pth_transforms.Normalize({statistics}),
])
""",
    "mae/main_pretrain.py": """
def main(args):
    transform_train = transforms.Compose([
        transforms.RandomResizedCrop(args.input_size, scale=({smallest}, 1.0), interpolation=3),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize({statistics})])
""",
}

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the C++ kernels")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench_script(monkeypatch, "presets")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("presets") / "data", classes=3, per_class=8)


def originals(root: Path, monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """A folder of them, with these values in them."""
    for name, text in SCRIPTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**{"resize": 256, "smallest": 0.2, "statistics": STATISTICS} | values))
    monkeypatch.setenv("GPUPIPE_ORIGINALS", str(root))


def test_what_lacks_is_told_with_how_it_comes(
    script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BenchSettings(str(data), batch_size=4, workers=1)
    monkeypatch.delenv("GPUPIPE_ORIGINALS", raising=False)
    assert "pass --originals or set $GPUPIPE_ORIGINALS" in load(
        "preset_peers.theirs:Theirs?preset=dino_eval"
    ).available(settings)
    monkeypatch.setenv("GPUPIPE_ORIGINALS", str(tmp_path))
    for name, how in {"dino_eval": "git clone", "dinov2_train": "git clone", "simclr_train": "pip install"}.items():
        reason = load(f"preset_peers.theirs:Theirs?preset={name}").available(settings)
        assert f"the folder of originals lacks it; there, {how}" in reason
    assert load("preset_peers.theirs:Theirs?preset=resnet50_v2_eval").available(settings) is None


def test_what_agrees_and_what_does_not(
    script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from preset_peers.agreement import Comparison

    def compared(name: str, **values: Any) -> Any:
        originals(tmp_path, monkeypatch, **values)
        return Comparison(name, str(data), 24).run()

    same = compared("dino_eval")
    assert (same.compared, same.wrong) == (24, None)
    assert same.mean < 0.1
    assert "gray levels apart in the mean" in compared("dino_eval", resize=248).wrong
    drawn = compared("mae_train")
    assert drawn.wrong is None
    assert 0 < drawn.distance < 1
    assert "the distributions of red are" in compared("mae_train", statistics=STATISTICS.replace("0.485", "0.9")).wrong
    assert "the distributions of detail" in compared("mae_train", smallest=0.99).wrong


def test_both_stream(script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    originals(tmp_path, monkeypatch)
    settings = BenchSettings(str(data), batch_size=4, workers=1)
    for way in script.WAYS.values():
        stream = load(f"{way}mae_train").open(settings)
        images, labels = next(iter(stream))
        stream.close()
        assert images.shape == (4, 3, 224, 224)
        assert labels.shape == (4,)


def test_every_preset_has_its_original(script: ModuleType) -> None:
    from preset_peers.originals import ORIGINALS
    from preset_peers.table import PRESETS

    assert list(ORIGINALS) == list(PRESETS)


def test_table(script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from preset_peers.agreement import Agreement

    class Child:
        """Rates and agreements that are known; one original lacks, one preset differs, one contender dies."""

        def __init__(self, what: str, arguments: tuple[str, BenchSettings], *_: object) -> None:
            (way, _, self.preset), self.settings = arguments[0].partition("?preset="), arguments[1]
            self.original = way.endswith("Theirs")
            self.rounds = 0

        def ask(self, question: str, *arguments: Any, **_: Any) -> Any:
            if question == "available":
                return "the folder of originals lacks it" if self.original and self.preset == "mae_train" else None
            if question == "compare":
                wrong = "pixels are 9.00 gray levels apart in the mean" if self.preset == "dino_eval" else None
                return Agreement(24, 0.25, 1.0, 0.5, wrong=wrong)
            if question == "open":
                return None
            self.rounds += 1
            if self.preset == "swin_eval" and not self.original and self.rounds == 2:
                raise ChildError("it died")
            rate = 100 if self.original else 320
            return Round(rate * self.rounds, self.rounds, 2.0 * self.rounds)

        def end(self) -> None:
            pass

    monkeypatch.setattr(script, "Child", Child)
    monkeypatch.setattr(script, "prepare", lambda folder: False)
    command = [str(data), "--out", str(tmp_path), "--rounds", "3", "--batch-size", "16", "--only"]
    assert script.main([*command, "imagenet_eval,mae_train"]) == 0
    text = (tmp_path / "results.md").read_text()
    pixels = "pixels: 0.2 gray levels apart in the mean, 50.00% of the mask differs"
    assert f"| 320 (320 - 320) | 100 (100 - 100) | 3.2 | 6.25 / 20.00 | {pixels} |" in text
    assert "- mae_train: original: the folder of originals lacks it" in text
    with open(tmp_path / "presets.csv") as file:
        assert [row["times"] for row in csv.DictReader(file)] == ["3.2", ""]
    content = json.loads((tmp_path / "presets.json").read_text())
    assert len(content["presets"]["imagenet_eval"]["results"][0]["rounds"]) == 3
    assert str(data) not in json.dumps(content)
    assert script.main([*command, "dino_eval"]) == 1
    assert script.main([*command, "swin_eval"]) == 0
    assert "gpupipe: it died" in (tmp_path / "results.md").read_text()
    assert script.main([*command, "none"]) == 1
