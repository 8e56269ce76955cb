"""Archives written to stores that fsspec knows, besides S3: at once, or by files that commit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import ClassVar

import npzkit
import numpy as np
import pytest
from npzkit.cli.commands import run
from npzkit.errors import UnsupportedError
from npzkit.files.urls import find_location
from npzkit.stores import fsspec_upload, retries, upload_sink
from npzkit.stores.store_for_url import open_sink
from range_server import RangeServer

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

ARRAYS = {f"k{i}": np.random.default_rng(i).normal(size=(40, 50)) for i in range(3)}
URL = "memory://bucket/a.npz"


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """The store in memory, which is empty; parts are small."""
    monkeypatch.setattr(upload_sink, "PART_SIZE", 5000)
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)
    file_system = fsspec.filesystem("memory")
    empty(file_system)
    yield file_system
    empty(file_system)


def empty(file_system):
    """Remove what this test left, or another one."""
    file_system.store.clear()
    file_system.pseudo_dirs[:] = [""]


def check(url, **options):
    with npzkit.open(url, **options) as npz:
        assert npz.verify().ok
        assert all(np.array_equal(npz[key], array) for key, array in ARRAYS.items())


# -- in memory ------------------------------------------------------------------


@pytest.mark.remedy(
    "The object of the other writer is kept. To replace it, write the archive again."
)
def test_a_condition_on_the_older_object(memory):
    """It is replaced if it is as it was, and otherwise when the archive is written again."""
    npzkit.save(URL, {"x": np.arange(3)})
    location = find_location(URL)
    with pytest.raises(npzkit.errors.StaleArchiveError, match="another writer replaced"):
        open_sink(location, tag="other")
    assert npzkit.open(URL).files == ["x"]
    npzkit.save(URL, ARRAYS)
    check(URL)


def through(url):
    """Return a function that writes to a URL, and the URL."""
    return lambda server, path: npzkit.save(url, ARRAYS) or url


def uploaded(server, path):
    """Write to a path, upload the file to a web server, and return its URL."""
    npzkit.save(path, ARRAYS)
    return server.put(path.read_bytes())


@pytest.mark.parametrize(
    ("url", "follow"),
    [
        *(
            pytest.param(
                None, follow,
                marks=pytest.mark.remedy(
                    "Write to a path, and upload the file; or use the URL of a store, such as"
                ),
            )
            for follow in (uploaded, through(URL))
        ),
        pytest.param(
            f"simplecache::{URL}", through(URL),
            marks=pytest.mark.remedy("Write to the URL of the store itself, such as s3://"),
        ),
        pytest.param(
            f"{URL}?versionId=abc", through(URL),
            marks=pytest.mark.remedy("Write to the URL without the version"),
        ),
    ],
)  # fmt: skip
def test_where_to_write_instead(memory, tmp_path, url, follow):
    """The archive is written where the error says."""
    with RangeServer().running() as server:
        with pytest.raises(UnsupportedError):
            npzkit.save(url or server.url(), ARRAYS)
        check(follow(server, tmp_path / "a.npz"))


@pytest.mark.remedy("Write to a path, and upload the file.")
def test_a_store_without_files_that_commit(memory, tmp_path):
    """Its objects would be seen before they are complete; a file is uploaded by its own means."""

    class Plain(type(memory)):
        protocol = ("plain",)

        def _open(self, path, mode="rb", **options):
            return super()._open(path, mode, **options) if "r" in mode else io.BytesIO()

        def put_file(self, source, target, **options):
            super()._open(self._strip_protocol(target), "wb").write(Path(source).read_bytes())

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("plain://").lstrip("/")

    fsspec.register_implementation("plain", Plain, clobber=True)
    url = "plain://bucket/a.npz"
    with pytest.raises(UnsupportedError, match="appear when they are complete"):
        npzkit.save(url, ARRAYS)
    npzkit.save(tmp_path / "a.npz", ARRAYS)
    fsspec.filesystem("plain").put_file(str(tmp_path / "a.npz"), url)
    check(url)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("https://me:secret@host/a.npz?token=secret", "web servers"),
        ("simplecache::s3://bucket/a.npz", "chain"),
        ("nosuchscheme://bucket/a.npz", "nosuchscheme"),
        ("s3://bucket/a.npz?versionId=abc", "one version"),
        ("gs://bucket/a.npz#1234567890", "one version"),
        ("memory://bucket/a.npz?versionId=abc", "one version"),
    ],
)
def test_what_cannot_be_written_to(url, what):
    """The error has a remedy, and no secret."""
    with pytest.raises(UnsupportedError, match=what) as caught:
        npzkit.save(url, ARRAYS)
    assert "secret" not in str(caught.value)


@pytest.mark.remedy("Copy it to a path with npzkit.repack(url, path), add to that file, and upload")
def test_mode_a_is_refused(tmp_path):
    """The error says how to add to a copy, which takes its place."""
    path = tmp_path / "a.npz"
    npzkit.save(URL, {"old": np.arange(3)})
    with pytest.raises(UnsupportedError, match=r"npzkit.repack\(path, url\)"):
        npzkit.NpzWriter(URL, "a")
    npzkit.repack(URL, path)
    with npzkit.NpzWriter(path, "a") as writer:
        for key, array in ARRAYS.items():
            writer[key] = array
    npzkit.repack(path, URL, overwrite=True)
    check(URL)
    with npzkit.open(URL) as npz:
        assert npz["old"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_functions(tmp_path):
    """savez, pack, convert, repack and repair write to URLs."""
    path, url = tmp_path / "a.npz", "memory://bucket/b.npz"
    npzkit.save(path, ARRAYS, metadata={"step": 1})
    npzkit.savez("memory://bucket/z", **ARRAYS)
    check("memory://bucket/z.npz")
    assert npzkit.pack(url, [path]).output == url
    check(url)
    with pytest.raises(FileExistsError):
        npzkit.pack(url, [path])
    assert npzkit.convert(path, url, overwrite=True, compression="deflated").output == url
    check(url)
    with pytest.raises(FileExistsError):
        npzkit.convert(path, url)
    with pytest.raises(UnsupportedError, match=r"only \.npz"):
        npzkit.convert(path, "memory://bucket/b.mat")
    npzkit.convert(path, tmp_path / "a.h5")
    assert npzkit.convert(tmp_path / "a.h5", url, overwrite=True).keys == tuple(ARRAYS)
    check(url)
    npzkit.repack(path, url, compression="deflated", overwrite=True)
    npzkit.repack(url, url, compression="stored")
    check(url)
    assert not npzkit.repair(url, "memory://bucket/c.npz").lost
    check("memory://bucket/c.npz")


def test_a_rewrite_in_place():
    """An object is replaced by its own copy, unless another writer replaced it meanwhile."""
    npzkit.save(URL, ARRAYS)
    npzkit.repack(URL, compression="deflated")
    check(URL)

    def progress(done, total):
        npzkit.save(URL, {"other": np.arange(3)})

    with pytest.raises(npzkit.errors.StaleArchiveError):
        npzkit.repack(URL, compression="stored", progress=progress)
    assert npzkit.open(URL).files == ["other"]


@pytest.mark.slow
def test_large_arrays_are_converted_in_parts(monkeypatch, tmp_path):
    """They pass through a file, because an upload is not filled in any order."""
    from npzkit.display import blocks

    monkeypatch.setattr(blocks, "BLOCK_SIZE", 5000)
    npzkit.save(tmp_path / "a.npz", ARRAYS)
    npzkit.convert(tmp_path / "a.npz", tmp_path / "a.h5")
    npzkit.convert(tmp_path / "a.h5", URL)
    check(URL)
    npzkit.convert(tmp_path / "a.h5", URL, overwrite=True, compression="deflated")
    check(URL)


# -- at a prompt ----------------------------------------------------------------


@pytest.fixture
def npz(capsys):
    """Call a command; return its exit code and what it printed."""

    def call(*arguments):
        code = run(list(map(str, arguments)))
        found = capsys.readouterr()
        return code, found.out + found.err

    return call


def test_commands_that_write(npz, tmp_path):
    """pack, convert, repack and repair take URLs, and replace no object without --overwrite."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)
    assert npz("pack", URL, path) == (0, f"{URL}: 3 arrays\n")
    code, text = npz("pack", URL, path)
    assert code == 2
    assert f"'{URL}' already exists. Pass --overwrite to replace it." in text
    assert npz("convert", path, URL)[0] == 2
    assert npz("convert", "--overwrite", path, URL) == (0, f"{URL}: 3 arrays\n")
    assert npz("repack", "-o", URL, path)[0] == 2
    code, text = npz("repack", "-o", "memory://bucket/new/", path)
    assert code == 0
    assert text.startswith("memory://bucket/new/a.npz: ")
    check("memory://bucket/new/a.npz")
    assert npz("repack", URL) == (0, f"{URL}: repacked\n")
    assert npz("repair", "-o", "memory://bucket/c.npz", URL)[0] == 0
    check("memory://bucket/c.npz")


def test_commands_for_checkpoints(npz):
    """They take URLs, and show no secrets."""
    from npzkit.checkpoint import CheckpointStore

    url = "memory://me:secret@runs/a"
    assert npz("ckpt", "ls", url) == (0, "memory://runs/a has no checkpoints\n")
    with CheckpointStore(url) as store:
        for step in (1, 2):
            store.save(step, {"w": np.full(3, step)}, {"loss": 1 / step})
    for command in (["ls"], ["verify"], ["prune", "--latest", "1"]):
        code, text = npz("ckpt", command[0], url, *command[1:])
        assert code == 0, text
        assert "step" in text
        assert "secret" not in text
    assert npz("ckpt", "ls", "--json", url)[1].count('"step"') == 1
    assert npz("diff", "--fast", *(f"{url}/step_0000000{step}.npz" for step in (1, 2)))[0] == 2


# -- files that commit ----------------------------------------------------------


class Files:
    """File systems whose files commit or discard, as fsspec asks of them; made on first use."""

    objects: ClassVar[dict[str, bytes]] = {}
    modes: ClassVar[list[str]] = []
    blocks: ClassVar[list[int]] = []
    fault = None

    @classmethod
    def register(cls):
        from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

        class File(AbstractBufferedFile):
            def _initiate_upload(self):
                self.received = b""

            def _upload_chunk(self, final=False):
                if Files.fault:
                    raise Files.fault
                data = self.buffer.getvalue()
                # As adlfs does.
                Files.blocks += range(0, len(data), self.blocksize)
                self.received += data
                return True

            def commit(self):
                Files.objects[self.path] = self.received

            def discard(self):
                Files.modes.append("discard")

        class FileSystem(AbstractFileSystem):
            protocol = "files"
            cachable = False

            def _open(self, path, mode="rb", **options):
                Files.modes.append(mode)
                return File(self, path, mode, **options)

            def info(self, path, **options):
                if path not in Files.objects:
                    raise FileNotFoundError(path)
                size = len(Files.objects[path])
                return {"name": path, "size": size, "type": "file", "etag": str(size)}

            def cat_file(self, path, start=None, end=None, **options):
                return Files.objects[path][start:end]

        fsspec.register_implementation("files", FileSystem, clobber=True)


@pytest.fixture
def files(monkeypatch):
    Files.objects, Files.modes, Files.blocks, Files.fault = {}, [], [], None
    Files.register()
    monkeypatch.setattr(fsspec_upload, "_GATHERED_SIZE", 1000)
    return Files


# Buffered files of fsspec know mode "xb" since 2024.12; those of before fail when they are removed.
@pytest.mark.filterwarnings("ignore:.*AbstractBufferedFile:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("arrays", [ARRAYS, {"x": np.arange(3)}])
def test_files_that_commit(files, arrays):
    """Nothing is visible before the commit; parts are sent in their order."""
    import fsspec

    url = "files://bucket/a.npz"
    with npzkit.NpzWriter(url, "x") as writer:
        for key, array in arrays.items():
            writer[key] = array
        assert not files.objects
    knows_mode = tuple(map(int, fsspec.__version__.split(".")[:2])) >= (2024, 12)
    assert files.modes == (["xb"] if knows_mode else ["xb", "wb"])
    with npzkit.open(url) as npz:
        assert npz.verify().ok
    with pytest.raises(FileExistsError):
        npzkit.NpzWriter(url, "x")


def test_a_part_is_one_block(files):
    """However large it is, because the number of blocks is limited."""
    npzkit.save("files://bucket/a.npz", ARRAYS)
    assert len(files.blocks) == -(-len(files.objects["bucket/a.npz"]) // upload_sink.PART_SIZE)


@pytest.mark.parametrize("fault", [ConnectionResetError("reset"), ValueError("odd")])
def test_files_that_fail(files, fault):
    """They are discarded; a file that failed is not written to again."""
    files.fault = fault
    with pytest.raises(OSError, match=r"files://bucket/a.npz: (reset|odd)"):
        npzkit.save("files://bucket/a.npz", ARRAYS)
    assert not files.objects
    assert files.modes == ["wb", "discard"]


def test_a_part_that_is_never_sent(files, monkeypatch):
    """If memory ends before a part is tried, those that wait for their turn behind it end too."""
    real = fsspec_upload.FsspecUpload.send

    def send(self, number, data):
        if number == 1:
            raise MemoryError
        real(self, number, data)

    monkeypatch.setattr(fsspec_upload.FsspecUpload, "send", send)
    monkeypatch.setattr(fsspec_upload, "_LOOK_SECONDS", 0.01)
    with pytest.raises(MemoryError):
        npzkit.save("files://bucket/a.npz", ARRAYS)
    assert not files.objects
    assert files.modes == ["wb", "discard"]


def test_an_exception_discards_the_file(files):
    """Also when it is collected, it is not completed."""
    with pytest.raises(ValueError, match="mine"), npzkit.NpzWriter("files://b/a.npz") as writer:
        writer["a"] = ARRAYS["k0"]
        raise ValueError("mine")
    assert not files.objects
    assert files.modes == ["wb", "discard"]


def test_paths_of_universal_pathlib(memory):
    """They are URLs, with their own storage options."""
    upath = pytest.importorskip("upath", reason="universal-pathlib is not installed")
    from npzkit.checkpoint import CheckpointStore

    folder = upath.UPath("memory://bucket/u")
    npzkit.save(folder / "a.npz", ARRAYS)
    npzkit.savez(folder / "b", x=np.arange(3))
    npzkit.repack(folder / "a.npz", folder / "c.npz", compression="deflated")
    with CheckpointStore(folder) as store:
        store.save(1, {"w": np.ones(3)})
    check(folder / "c.npz")
    names = ["a.npz", "b.npz", "c.npz", "step_00000001.npz"]
    assert memory.find("/bucket") == [f"/bucket/u/{name}" for name in names]


def test_a_file_that_cannot_be_opened(files, monkeypatch):
    """The store's error is the only one: there is no file yet that could be discarded."""

    def refuse(*_, **__):
        raise PermissionError("the quota is used up")

    monkeypatch.setattr(fsspec.get_filesystem_class("files"), "_open", refuse)
    with pytest.raises(OSError, match="the quota is used up"):
        npzkit.save("files://bucket/a.npz", ARRAYS)
