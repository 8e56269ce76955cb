"""A server of Azure's blob storage on the loopback, where Azurite is installed."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

__all__ = ["ACCOUNT", "KEY", "azure_server", "connection_string", "needs_azure"]

# On Windows it is a script, whose end would not end the server.
_AZURITE = shutil.which("azurite-blob") if os.name == "posix" else None
needs_azure = pytest.mark.skipif(
    not (_AZURITE and importlib.util.find_spec("adlfs")),
    reason="azurite (npm install -g azurite) and adlfs are not installed",
)

ACCOUNT = "account"
KEY = base64.b64encode(b"verysecret").decode()


def connection_string(server: str, secret: str = f"AccountKey={KEY}") -> str:
    """Return what names a server and an account, with a key or a signature."""
    return f"AccountName={ACCOUNT};{secret};BlobEndpoint={server}/{ACCOUNT};"


@contextlib.contextmanager
def azure_server() -> Iterator[str]:
    """Yield the URL of a server that has an empty container named data."""
    import fsspec

    arguments = [
        "--blobHost=127.0.0.1", "--blobPort=0", "--inMemoryPersistence", "--silent",
        "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [str(_AZURITE), *arguments], stdout=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        )  # fmt: skip
        try:
            # The port that the system chose. The output ends if the server cannot start.
            found = None
            while found is None and (line := process.stdout.readline()):
                found = re.search(r"listens on (http://\S+)", line)
            assert found, "Azurite did not start"
            options = {"connection_string": connection_string(found[1])}
            fsspec.filesystem("az", **options).mkdir("data")
            yield found[1]
        finally:
            process.kill()
            process.communicate()
