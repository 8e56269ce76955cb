"""Try several models of scikit-learn, and save each of them without pickle. Kill it, and it continues."""

import sys

from npzkit.checkpoint import CheckpointStore, best
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

RATES = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]
folder = sys.argv[1] if len(sys.argv) > 1 else "sklearn_run"


def state_of(estimator):
    """Return the parameters, and what `fit` has found: attributes that end in an underscore."""
    fitted = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    return {"params": estimator.get_params(), "fitted": fitted}


def restored(kind, state):
    estimator = kind(**state["params"])
    vars(estimator).update(state["fitted"])
    return estimator


inputs, targets = load_iris(return_X_y=True)
losses = []

with CheckpointStore(folder, keep=best("loss", len(RATES))) as store:
    for step, rate in enumerate(RATES):
        if step not in store:
            scaler = StandardScaler().fit(inputs[::2])
            model = LogisticRegression(C=rate).fit(scaler.transform(inputs[::2]), targets[::2])
            chances = model.predict_proba(scaler.transform(inputs[1::2]))
            loss = float(log_loss(targets[1::2], chances))
            tree = {"scaler": state_of(scaler), "model": state_of(model)}
            tree["chances"] = chances
            store.save(step, tree, metrics={"loss": loss})
        saved = store.load(step).tree
        scaler = restored(StandardScaler, saved["scaler"])
        model = restored(LogisticRegression, saved["model"])
        again = model.predict_proba(scaler.transform(inputs[1::2]))
        assert (again == saved["chances"]).all()
        losses.append(store.metrics(step)["loss"])
    print("the best C is", RATES[store.best("loss")], file=sys.stderr)

print(*[loss.hex() for loss in losses])
