"""An open archive that is pickled."""

from __future__ import annotations

import copy
import pickle

import npzkit
import numpy as np
import pytest
from archives import same
from npzkit.errors import LimitExceededError, StaleArchiveError


def test_pickling_by_path(path, arrays):
    """A pickled archive is opened again by its path, with its options."""
    with npzkit.open(path, limits=npzkit.Limits(member_size=10_000)) as npz:
        for other in (pickle.loads(pickle.dumps(npz)), copy.copy(npz)):
            with other:
                assert same(other["fortran"], arrays["fortran"])
                with pytest.raises(LimitExceededError):
                    other["weights"]
        data = pickle.dumps(npz)
    npzkit.save(path, {"weights": np.zeros(3)})
    with pytest.raises(StaleArchiveError, match="changed since the archive was pickled"):
        pickle.loads(data)
    with npzkit.open(path.read_bytes()) as npz, pytest.raises(TypeError, match="path"):
        pickle.dumps(npz)
