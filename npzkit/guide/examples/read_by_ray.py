"""Ray reads the files of a data set: each task gets the numbers of samples, and opens what it needs.

Needs npzkit and "ray[data]". Run: python read_by_ray.py FOLDER
"""

import sys
from pathlib import Path

import npzkit
import numpy as np
import ray

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for number in range(20):
    sample = {"image": np.full((8, 8), number, "f4"), "label": number % 3}
    npzkit.save(folder / f"sample{number}.npz", sample)


def read(batch):
    """Return the pictures and labels of a batch of numbers."""
    samples = [many.samples[int(number)] for number in batch["id"]]
    return {key: np.stack([sample[key] for sample in samples]) for key in many}


# The files' headers are read once, here. Pickled, they are small.
many = npzkit.open_many(f"{folder}/*.npz", axis=None)
ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
data = ray.data.range(len(many.samples)).map_batches(read, batch_size=5)
rows = data.take_all()
print(
    len(rows),
    sum(int(row["label"]) for row in rows),
    float(sum(row["image"].sum() for row in rows)),
)
ray.shutdown()
