"""Checkpoints of training runs: one file per step, checked, and complete or not there.

>>> import tempfile, numpy as np
>>> from npzkit.checkpoint import CheckpointStore, latest
>>> with CheckpointStore(tempfile.mkdtemp(), keep=latest(3)) as store:
...     saving = store.save(100, {"model": {"w": np.eye(2)}, "lr": 0.1}, metrics={"loss": 0.5})
...     checkpoint = store.load()
>>> checkpoint.step, checkpoint.tree["lr"], checkpoint.metrics
(100, 0.1, {'loss': 0.5})
"""

from __future__ import annotations

from npzkit.checkpoint.background import Saving
from npzkit.checkpoint.catalog import StoreReport
from npzkit.checkpoint.loading import Checkpoint
from npzkit.checkpoint.policies import Policy, best, every, latest
from npzkit.checkpoint.store import CheckpointStore
from npzkit.errors import DamagedCheckpointError, DamagedCheckpointWarning, NoCheckpointError

__all__ = [
    "Checkpoint", "CheckpointStore", "DamagedCheckpointError", "DamagedCheckpointWarning",
    "NoCheckpointError", "Policy", "Saving", "StoreReport", "best", "every", "latest",
]  # fmt: skip

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Names are the truth. A step exists if its file does, because a file gets its name when it is
#   complete. No file says which step is the latest: it could be wrong.
# - A step has the checksums of its archive, and no others: the footer's, of names, attributes and
#   metadata, or those of the index of its folder. So a step's file without a footer is damaged. A
#   file without arrays has no place for one, so that its metadata have a CRC-32 in their own
#   JSON.
# - npzkit alone writes steps, so what it would not have written is damage. Steps are opened with
#   `strict=True`, and without limits, which an array with many fields or a large tree may exceed.
# - A writer keeps its lock from its first save until it is closed, so that two runs do not mix
#   their steps in one folder. The lock is on a file of its own, which stays. On network shares
#   without locks each step is still complete, and temporary files are removed only when they are
#   an hour old.
# - A step in several files is a folder, which counts when its index is there. Its removal begins
#   with the index.
# - One form for a store: the first step decides whether steps are files or folders, and a step
#   that exists keeps its form. So no commit replaces one form by the other, and nothing has to
#   say which of two counts. A plain save follows the store, because a run of many processes may
#   go on with one. A store that declares frozen arrays begins with a folder, also if its first
#   step has none. Steps that were put together by hand are all listed: hiding some would look
#   like losing them.
# - Retention keeps the step just saved, also below newer steps. `best` keeps all steps while none
#   has its metric: a metric that is spelled in another way would remove the whole run. Both are
#   warnings. A step that cannot be removed does not stop the removal of others.
# - Retention reads before it removes, and asks the policy again until all that a removal rests on
#   was read just then: the newest sound step, and the metadata of the steps that stay because of
#   their metrics. Reading the metadata of all steps would cost an open per step and save. A step
#   that goes need not be read. What this save has written need not be read either. With
#   `durable=False`, the newest step is synced first. Damaged steps are neither counted nor
#   removed.
# - Beside a writer that removes and replaces steps, readers look again. A list of which no step
#   exists any more says nothing: only what two lists find in the same way counts. An error, or a
#   report of damage, counts only if the step has the same identity before and after it was read.
#   `checkpoint/catalog` reads all steps in this way.
# - `load()` skips a step only if it is damaged: wrong bytes, and input/output errors. Too little
#   memory is neither. An array that needs a codec which is not installed is an error, because an
#   older step would need it too.
# - Copies for a background save lie in one piece of memory, which the system gives out in fewer
#   steps: 51 MB of 400 arrays take 8 ms, and 24 ms with a piece per array.
# - A step that has not changed is saved again, unless the caller declares arrays frozen.
#   Otherwise it does not link to the former one. A proof that nothing changed costs as much as
#   the save: comparing through a map takes 0.9 times its time, reading 1.7 times, a hash of 128
#   bits 5 times (`checkpoints.py --reuse`). Also, a step's file has its own number, metrics and
#   checksum, so it could not be a link to another one.
# - Frozen arrays are compared by CRC-32, because the caller says that they do not change: that
#   finds mistakes, and a CRC-32 takes less time than reading the file or a hash. Only the newest
#   step is compared. Its shards are linked if all that they hold is frozen and the same, under
#   new names, so that leftovers, failures and removals need no other rules than those of any
#   shard. They are compared before `save` returns: what is linked needs no copy for the
#   background.
# - A step with linked shards is as sound as the step that it shares with. So retention reads the
#   new step before it removes others, unless these have the very same shards.
# - Arrays of JAX are copied for a background save, although nothing can write to them.
#   `jax.device_put` and `jax.dlpack` may share the memory of a NumPy array or a tensor that a
#   program changes, and the array does not say so. Donation alone would be safe: a view of NumPy
#   keeps JAX from reusing the memory.
# - Arrays below 16 MiB share memory when many are loaded, 16 MiB at a time. Linux gives out
#   memory in pages of 2 MiB where a piece contains a whole one, and in pages of 4 KiB elsewhere.
#   An array of 4 MiB in a piece of its own mostly contains one large page, and half of it is made
#   of small ones, which take longer than reading the bytes that go there. Each piece begins with
#   a large page. That is why 64 arrays of 4 MiB are loaded faster than by bare `preadv` into
#   arrays of their own (`bench.py --only load-layers`). An array that is kept keeps at most 32
#   MiB alive.
# - Tensors on the CPU are filled by NumPy. `Tensor.copy_` uses threads that wait for each other:
#   with other programs on the processors, it takes three to six times as long.
# - A thread per background save is started with `_thread`, and npzkit has Python wait for it
#   before it ends. `threading` would wait for ever for a thread that dies before it runs a line,
#   because memory ended, and the pools of `concurrent.futures` refuse new tasks when Python ends.
#   A `Future` in place of the event, the error and the removed steps of a `Saving` takes two
#   lines more: it does not notice a thread that died either.
# - Stores of objects have no locks that end with their holder: a lock object would be left by
#   each killed run. A new step is uploaded on the condition that there is none, a step that is
#   saved again on the condition that it has the ETag from before.
# - A policy removes what it saw. A step that another writer has saved again since stays. S3
#   compares the ETag at the instant of the removal. fsspec has no such condition for other
#   stores, so there the version is compared just before.
# - The first save of a store ends all uploads of steps under its URL. `prune` and `delete` end
#   none: a run may be saving.
# - A list of objects answers what single steps are for one second, because policies ask for each
#   of them. Every call for `steps` lists again.
