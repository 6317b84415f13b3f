import dataclasses
import importlib
import subprocess
import sys

import pytest
from modules import MODULES

import gpupipe


def test_public_names():
    assert gpupipe.__all__ == sorted(gpupipe.__all__)
    for name in gpupipe.__all__:
        assert getattr(gpupipe, name).__name__ == name
    assert set(gpupipe.__all__) <= set(dir(gpupipe))


def test_the_kinds_of_fields_are_all_listed() -> None:
    """As words, which type checkers understand, where a sum of lists would not be."""
    assert set(gpupipe.batch.__all__) == {*gpupipe.batch.fields.__all__, "Images", "Ragged", "Schema"}


def test_the_help_of_each_kind_leads_to_what_all_have():
    kinds = [kind for name in gpupipe.__all__ if isinstance(kind := getattr(gpupipe, name), type)]
    kinds = [kind for kind in kinds if issubclass(kind, gpupipe.Field) and kind is not gpupipe.Field]
    assert len(kinds) == 11
    assert [kind.__name__ for kind in kinds if "see `gpupipe." not in kind.__doc__] == []
    names = [field.name for field in dataclasses.fields(gpupipe.Field) if field.name != "_"]
    assert [name for name in names if name not in gpupipe.Field.__doc__] == []


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="Lodaer"):
        gpupipe.Lodaer  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_every_module_exports_what_it_says(name):
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert all(hasattr(module, attribute) for attribute in exported)


def test_importing_the_package_and_the_command_line_is_light():
    code = "import sys; from gpupipe.tools import cli; cli.parser(); print({'torch', 'nvidia.dali'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
