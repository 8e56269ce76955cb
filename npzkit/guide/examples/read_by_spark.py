"""Spark reads the files of a data set: each partition gets the numbers of samples.

Needs npzkit, pyspark and Java. Run: python read_by_spark.py FOLDER
"""

import sys
from pathlib import Path

import npzkit
import numpy as np
from pyspark import SparkConf, SparkContext

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for number in range(20):
    sample = {"image": np.full((8, 8), number, "f4"), "label": number % 3}
    npzkit.save(folder / f"sample{number}.npz", sample)

many = npzkit.open_many(f"{folder}/*.npz", axis=None)


def read(numbers):
    """Yield a label and the sum of a picture, for each number."""
    for number in numbers:
        sample = many.samples[number]
        yield int(sample["label"]), float(sample["image"].sum())


options = SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false")
context = SparkContext(conf=options)
context.setLogLevel("ERROR")
rows = context.parallelize(range(len(many.samples)), 4).mapPartitions(read).collect()
print(len(rows), sum(label for label, _ in rows), sum(total for _, total in rows))
context.stop()
