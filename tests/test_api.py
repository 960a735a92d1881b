"""The public names."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import adaptree as at


def test_every_public_name_is_there_and_none_is_hidden_by_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(at.__path__)}
    assert set(at.__all__) & modules == set()
    for name in at.__all__:
        assert getattr(at, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="trian"):
        _ = at.trian


def test_the_version_is_the_package_s() -> None:
    done = subprocess.run([sys.executable, "-m", "adaptree", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"adaptree {at.__version__}"
