"""The type of an exception of the user's dataset, as `except` around next() finds it."""

from __future__ import annotations

import builtins
import errno
import json
import pickle
import subprocess
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch.utils.data
from images import encode, picture

import gpupipe
from gpupipe.errors import DataError, unlinked
from gpupipe.sources.raised import as_raised

ENGINES = [
    pytest.param({"engine": "torch", "num_workers": 0}, id="torch-0"),
    pytest.param({"engine": "torch", "num_workers": 2}, id="torch-2"),
    pytest.param({"engine": "dali", "num_workers": 1}, id="dali"),
]
JPEG = encode(picture(16, 16))


class RefusedError(KeyError):
    """An error of a client library, which takes more than a text."""

    def __init__(self, code: int, response: dict[str, Any]) -> None:
        self.code, self.response = code, response
        super().__init__(code)

    def advice(self) -> str:
        """A method over attributes of its own."""
        return f"{self.code} means wait"


class StubbornError(LookupError):
    """Can't be made without its argument."""

    def __new__(cls, *, code: int) -> StubbornError:
        return super().__new__(cls)

    def __init__(self, *, code: int) -> None:
        self.code = code


@dataclass(frozen=True)
class FrozenError(ValueError):
    """Refuses attributes."""

    code: int


class Meta(type):
    """A metaclass of the user's."""


class MetaError(TimeoutError, metaclass=Meta):
    """Has a metaclass."""


class CountedError(RuntimeError):
    """A RuntimeError, as SampleError is one, that takes two arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


def local() -> Exception:
    class InFunctionError(RefusedError):
        """Can't be imported."""

    return InFunctionError(3, {})


def decode_error() -> Exception:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


def json_error() -> Exception:
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return error
    raise AssertionError


# What is raised, the types that `except` has to find, and those that are left in another process if they are others.
RAISED: dict[str, tuple[Callable[[], Exception], tuple[type, ...], tuple[type, ...]]] = {
    "KeyError": (lambda: KeyError("name"), (KeyError,), ()),
    "FileNotFoundError": (lambda: FileNotFoundError(errno.ENOENT, "gone", "a.jpg"), (FileNotFoundError, OSError), ()),
    "UnicodeDecodeError": (decode_error, (UnicodeDecodeError, ValueError), ()),
    "JSONDecodeError": (json_error, (json.JSONDecodeError,), ()),
    "CalledProcessError": (lambda: subprocess.CalledProcessError(3, "x"), (subprocess.CalledProcessError,), ()),
    "ImportError": (lambda: ImportError("no", name="lib"), (ImportError,), ()),
    "AttributeError": (lambda: AttributeError("no", name="x", obj=3), (AttributeError,), ()),
    "with arguments": (lambda: RefusedError(3, {"a": 1}), (RefusedError, KeyError), ()),
    "a function's own": (local, (RefusedError, KeyError), (RefusedError,)),
    "a RuntimeError": (lambda: CountedError(1, 2), (CountedError, RuntimeError), ()),
    "with a metaclass": (MetaError, (MetaError, OSError), ()),
    "not to be made": (lambda: StubbornError(code=1), (LookupError,), ()),
    "frozen": (lambda: FrozenError(3), (ValueError,), ()),
    "a group": (lambda: getattr(builtins, "ExceptionGroup", Exception)("several", [KeyError("a")]), (), ()),
    "gpupipe's own": (lambda: DataError("no"), (DataError, ValueError), ()),
    "StopIteration": (lambda: StopIteration(3), (), ()),
    "SyntaxError": (lambda: SyntaxError("no", ("file.py", 1, 1, "text")), (), ()),
}


def raised(error: Exception) -> gpupipe.SampleError:
    try:
        raise error
    except Exception as caught:
        return as_raised(caught, 7, "Faulty[7]", f"it raised {caught}")


@pytest.mark.parametrize("name", RAISED)
class TestTypes:
    def test_is_both(self, name: str) -> None:
        make, kinds, _ = RAISED[name]
        cause = make()
        error = raised(cause)
        assert isinstance(error, gpupipe.SampleError)
        for kind in kinds:
            assert isinstance(error, kind)
        if not kinds:
            assert type(error) is gpupipe.SampleError
        assert error.__cause__ is cause
        assert error.args == cause.args
        assert (error.index, error.location) == (7, "Faulty[7]")

    def test_its_text_is_the_sample_errors(self, name: str) -> None:
        error = raised(RAISED[name][0]())
        assert str(error) == str(gpupipe.SampleError(7, "Faulty[7]", error.reason))
        assert str(error).startswith("sample 7 (Faulty[7]): it raised ")
        printed = "".join(traceback.format_exception(error))
        assert f": {error}" in printed
        assert "raise error" in printed
        assert unlinked(str(error)) in repr(error)

    def test_is_sent_by_pickle(self, name: str) -> None:
        make, kinds, there = RAISED[name]
        error = raised(make())
        for sent in (pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))):
            assert isinstance(sent, gpupipe.SampleError)
            for kind in there or kinds:
                assert isinstance(sent, kind)
            assert (str(sent), sent.index, sent.original) == (str(error), 7, error.original)
            assert "raise error" in "".join(traceback.format_exception(sent))

    def test_a_copy_holds_no_frames(self, name: str) -> None:
        error = raised(RAISED[name][0]())
        bare = error.bare()
        assert type(bare) is type(error)
        assert (str(bare), bare.original, bare.__traceback__) == (str(error), error.original, None)
        assert bare.__cause__ is not error.__cause__


def test_attributes_are_those_of_what_was_raised() -> None:
    error: Any = raised(FileNotFoundError(errno.ENOENT, "gone", "a.jpg"))
    assert (error.errno, error.strerror, error.filename) == (errno.ENOENT, "gone", "a.jpg")
    error = raised(RefusedError(3, {"a": 1}))
    assert (error.code, error.response, error.advice()) == (3, {"a": 1}, "3 means wait")
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = error.nothing_such
    sent: Any = pickle.loads(pickle.dumps(raised(OSError(5, "no"))))
    assert (sent.errno, repr(sent.__cause__)) == (5, "OSError(5, 'no')")
    assert "OSError: [Errno 5] no" in str(sent.__cause__.__cause__)
    large = OSError(5, "no")
    large.data = bytes(1 << 17)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="errno"):  # rather than a None that looks like an answer
        _ = pickle.loads(pickle.dumps(raised(large))).errno


def test_a_type_that_the_other_process_lacks_is_no_error_there(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("class OnlyHereError(LookupError): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    sent = pickle.dumps(raised(only_here.OnlyHereError("x")))
    assert isinstance(pickle.loads(sent), only_here.OnlyHereError)
    monkeypatch.undo()
    monkeypatch.delitem(__import__("sys").modules, "only_here")
    there = pickle.loads(sent)
    assert isinstance(there, LookupError)
    assert str(there).startswith("sample 7 (Faulty[7])")


class Faulty(torch.utils.data.Dataset[Any]):
    """Raises at sample 7."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 7:
            raise RAISED[self.name][0]()
        return JPEG, index


def open_loader(name: str, **options: Any) -> gpupipe.Loader:
    return gpupipe.Loader(Faulty(name), gpupipe.imagenet_eval(8), 4, device="cpu", **options)


@pytest.mark.parametrize(
    "name", ["KeyError", "FileNotFoundError", "with arguments", "a function's own", "StopIteration"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_except_finds_it_around_next(engine: dict[str, Any], name: str) -> None:
    kinds = RAISED[name][1] or (gpupipe.SampleError,)
    with open_loader(name, **engine) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3]
        with pytest.raises(kinds, match=r"^sample 7 \(Faulty\[7\]\): Faulty.__getitem__ raised ") as caught:
            next(batches)
    error: Any = caught.value
    assert isinstance(error, gpupipe.SampleError)
    assert error.index == 7
    assert "in __getitem__" in error.original
    assert type(error.__cause__) is not type(error)
    if name == "FileNotFoundError":
        assert error.errno == errno.ENOENT
    if name == "with arguments":
        assert error.response == {"a": 1}


@pytest.mark.parametrize(
    "name", ["KeyError", "UnicodeDecodeError", "with arguments", "a RuntimeError", "not to be made"]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_dataloader_lets_except_find_is_found(name: str, workers: int) -> None:
    kinds = RAISED[name][1]
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        list(torch.utils.data.DataLoader(Faulty(name), 4, num_workers=workers, collate_fn=len))
    with open_loader(name, engine="torch", num_workers=workers) as loader, pytest.raises(kinds) as ours:
        list(loader)
    if workers == 0 or name == "KeyError":
        assert isinstance(theirs.value, kinds)
    assert isinstance(ours.value, gpupipe.SampleError)


@pytest.mark.parametrize("engine", ENGINES)
def test_skipped_samples_keep_it(engine: dict[str, Any]) -> None:
    with open_loader("KeyError", on_error="skip", **engine) as loader:
        assert sum(len(labels) for _, labels in loader) == 12
        assert [(bad.index, isinstance(bad, KeyError)) for bad in loader.bad_samples] == [(7, True)]


def _raise(name: str) -> None:
    raise raised(RAISED[name][0]())


def test_other_pools_can_send_it() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(KeyError, match="sample 7"):
        pool.submit(_raise, "KeyError").result()
