"""C functions of other packages' extension modules."""

from __future__ import annotations

import pytest
from npzkit.codecs.extension_functions import exported_functions


@pytest.mark.parametrize(
    ("module", "name"), [("no_such_package", "f"), ("json", "f"), ("_ctypes", "no_such_function")]
)
def test_functions_that_cannot_be_called_are_none(module, name):
    """A missing package, a module that is no library and a missing function give None."""
    assert exported_functions(module, name) is None
