"""Train with Keras, whose weights npzkit saves after each epoch. Kill it, and it continues."""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from npzkit.checkpoint import CheckpointStore, NoCheckpointError, latest

EPOCHS = 8
folder = sys.argv[1] if len(sys.argv) > 1 else "keras_run"


def state(model):
    """Return the variables of a model and its optimizer by their names, as NumPy's arrays."""
    return {
        "weights": {each.path: np.asarray(each) for each in model.weights},
        "optimizer": {each.path: np.asarray(each) for each in model.optimizer.variables},
    }


class Saving(keras.callbacks.Callback):
    """Save what the model has after each epoch, and begin with what was saved last."""

    def __init__(self, store):
        super().__init__()
        self.store, self.losses, self.first = store, [], 0

    def resume(self, model):
        model.optimizer.build(model.trainable_variables)
        try:
            found = self.store.load()
        except NoCheckpointError:
            return
        for each in model.weights:
            each.assign(found.tree["weights"][each.path])
        for each in model.optimizer.variables:
            each.assign(found.tree["optimizer"][each.path])
        self.losses, self.first = found.tree["losses"], found.step

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        self.store.save(epoch + 1, {**state(self.model), "losses": self.losses})


keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal((64, 4)).astype("f4")
y = x @ np.arange(4, dtype="f4")[:, None]
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
with CheckpointStore(folder, keep=latest(3)) as store:
    saving = Saving(store)
    saving.resume(model)
    model.fit(
        x, y, epochs=EPOCHS, initial_epoch=saving.first, shuffle=False, verbose=0,
        callbacks=[saving],
    )  # fmt: skip
print(*[loss.hex() for loss in saving.losses])
