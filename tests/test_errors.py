"""Each public error has a section in the documentation, and says so once when it is printed."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from images import write_folder
from torchvision.transforms import v2

import gpupipe
from gpupipe import errors
from gpupipe.sources.raised import as_raised
from gpupipe.texts import MOST_MESSAGE
from gpupipe.tools.cli import main

DOCS = Path(__file__).parent.parent / errors.DOCUMENTATION
LINK = re.compile(r"\(docs/errors\.md#(\w+)\)")
PUBLIC = [getattr(errors, name) for name in errors.__all__]
EVAL = gpupipe.imagenet_eval(32)


def once(text: str, name: str) -> bool:
    """Whether a message ends with the section of that class, and has no other one."""
    return LINK.findall(text) == [name.lower()] and text.endswith(f"(docs/errors.md#{name.lower()})")


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_each_has_a_section_of_its_own(kind: type[gpupipe.GpupipeError]) -> None:
    page, _, anchor = kind._page.partition("#")
    assert anchor == kind.__name__.lower()
    sections = re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE)[1:]
    (text,) = [section for section in sections if section.split("\n")[0] == kind.__name__]
    assert len(text.split()) > 40


def test_the_page_has_no_section_of_another() -> None:
    found = re.findall(r"^## (\w+)$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert sorted(found) == sorted(errors.__all__)


class Faulty:
    """A dataset of the user's own, which raises a KeyError, or one of gpupipe's."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise self.error


def state_of_another(folder: Path) -> None:
    with gpupipe.Loader(folder, EVAL, 2, num_workers=0) as one, gpupipe.Loader(folder, EVAL, 2, seed=3) as other:
        other.load_state_dict(one.state_dict())


def read(data: Any, **options: Any) -> None:
    with gpupipe.Loader(data, EVAL, 2, engine="torch", device="cpu", num_workers=0, **options) as loader:
        list(loader)


def damaged(folder: Path) -> Path:
    (folder / "class_0" / "img_0.jpg").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("ConfigError", lambda folder: gpupipe.Loader(folder, EVAL, 0)),
        ("ConfigError", lambda folder: gpupipe.Mask(dtype="float32")),
        ("DataError", lambda folder: gpupipe.Loader(folder / "nowhere", EVAL)),
        ("TranslationError", lambda folder: gpupipe.Recipe.from_torchvision(v2.RandomRotation(30, expand=True))),
        ("EngineUnavailableError", lambda folder: gpupipe.Loader(folder, EVAL, device="cuda:99")),
        ("StateError", state_of_another),
        ("SampleError", lambda folder: read(damaged(folder))),
        ("SampleError", lambda folder: read(Faulty(KeyError("b")))),
        ("SampleError", lambda folder: read(Faulty(gpupipe.ConfigError("wrong")))),
        ("TooManyBadError", lambda folder: read(damaged(folder), on_error="skip", max_bad=0)),
    ],
)
def test_what_the_api_raises_ends_with_its_section_once(name: str, cause: Any, tmp_path: Path) -> None:
    with pytest.raises(gpupipe.GpupipeError) as caught:
        cause(write_folder(tmp_path / "data", classes=2, per_class=2))
    error = caught.value
    assert isinstance(error, getattr(gpupipe, name))
    assert once(str(error), name)
    assert once(str(pickle.loads(pickle.dumps(error))), name)
    assert not any(LINK.search(part) for part in error.args if isinstance(part, str))
    assert not LINK.search(repr(error))


def test_messages_of_others_in_a_message() -> None:
    inner = gpupipe.ConfigError("size=0 is wrong")
    assert once(str(inner), "ConfigError")
    assert str(gpupipe.DataError(f"it can't be read ({inner}); look")) == (
        "it can't be read (size=0 is wrong); look (docs/errors.md#dataerror)"
    )
    sample = gpupipe.SampleError(3, "a.jpg", f"it raised {inner}")
    assert sample.reason == "it raised size=0 is wrong"
    assert once(str(gpupipe.WorkerError(f"{sample} while {sample}")), "WorkerError")
    assert once(str(gpupipe.TranslationError("Resize", str(inner), "take another")), "TranslationError")
    assert once(str(gpupipe.SkippedSampleError(3, "a.jpg", "has no 'mask'")), "SkippedSampleError")


def test_the_users_own_attribute_of_that_name() -> None:
    class PageError(Exception):
        page = 7

    error = as_raised(PageError("no such page"), 1, "a.pdf", "it raised PageError")
    assert (error.page, once(str(error), "SampleError")) == (7, True)  # type: ignore[attr-defined]


def test_a_long_message_keeps_it() -> None:
    text = str(gpupipe.DataError("a" * 100_000))
    assert once(text, "DataError")
    assert MOST_MESSAGE < len(text) < MOST_MESSAGE + 60


def test_the_command_line_has_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path / "nowhere")]) == 2
    assert once(capsys.readouterr().err.rstrip(), "DataError")
    assert main(["new", str(tmp_path), "-o", "train.txt"]) == 2
    assert once(capsys.readouterr().err.rstrip(), "ConfigError")


def test_a_traceback_ends_with_it() -> None:
    program = "import gpupipe; gpupipe.Image(missing='default')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert once(done.stderr.rstrip(), "ConfigError")
