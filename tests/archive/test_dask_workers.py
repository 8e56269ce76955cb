"""Archives behind URLs in the worker processes of dask.distributed."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.errors import StaleArchiveError
from range_server import RangeServer

distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
da = pytest.importorskip("dask.array", reason="dask is not installed")
# Of dask's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

ARRAYS = {f"w{i}": np.random.default_rng(i).random((4096, 10)) for i in range(4)}


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def server():
    with RangeServer().running() as server:
        server.url_of_data = server.put(packed(ARRAYS, compression="deflated"))
        yield server


def test_an_archive_as_an_argument(client, server):
    """It is opened again in each worker, with its storage options."""
    options = {"headers": {"X-A": "1"}}
    with npzkit.open(server.url_of_data, storage_options=options) as npz:
        sums = client.map(lambda key, npz: float(npz[key].sum()), npz.files, npz=npz, pure=False)
        assert client.gather(sums) == [array.sum() for array in ARRAYS.values()]
    assert all(request.headers["x-a"] == "1" for request in server.requests)


def test_a_lazy_array_as_an_argument(client, server):
    """A worker gets no data, and reads its rows itself."""
    with npzkit.open(server.url_of_data) as npz:
        lazy = npz.lazy("w2")
        server.forget()
        rows = client.submit(lambda lazy: lazy[100:103], lazy).result()
    np.testing.assert_array_equal(rows, ARRAYS["w2"][100:103])
    assert server.count >= 2


def test_a_dask_array(client, server):
    """dask's chunks are read by the workers, in parallel."""
    with npzkit.open(server.url_of_data) as npz:
        array = da.from_array(npz.lazy("w1"), chunks=(512, 10))
        assert float(array.sum().compute()) == pytest.approx(ARRAYS["w1"].sum())
        np.testing.assert_array_equal((array[::7] * 2).compute(), ARRAYS["w1"][::7] * 2)


def test_an_archive_that_was_replaced(client, server):
    """Neither a worker nor the scheduler reads another version than the one that was opened."""
    with npzkit.open(server.url_of_data) as npz:
        server.etag = '"two"'
        failing = client.submit(lambda npz: npz["w0"], npz, retries=0)
        with pytest.raises(StaleArchiveError):
            failing.result()
