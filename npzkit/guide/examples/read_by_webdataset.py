"""webdataset reads archives from shards in tar files: each sample is an .npz file in a shard.

Needs npzkit and webdataset. Run: python read_by_webdataset.py FOLDER
"""

import io
import sys
from pathlib import Path

import npzkit
import numpy as np
import webdataset

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
with webdataset.ShardWriter(f"{folder}/%04d.tar", maxcount=8, verbose=0) as shards:
    for number in range(20):
        stream = io.BytesIO()
        npzkit.save(stream, {"image": np.full((8, 8), number, "f4"), "label": number % 3})
        shards.write({"__key__": f"{number:06}", "npz": stream.getvalue()})


def arrays(data):
    """Return the arrays of an archive in memory, compared with their CRC-32s."""
    with npzkit.open(data) as npz:
        return npz.load_all()


paths = sorted(map(str, folder.glob("*.tar")))
data = webdataset.WebDataset(paths, shardshuffle=False).map_dict(npz=arrays)
rows = [sample["npz"] for sample in data]
print(
    len(rows),
    sum(int(row["label"]) for row in rows),
    float(sum(row["image"].sum() for row in rows)),
)
