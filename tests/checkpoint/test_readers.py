"""Who reads a step: what is kept about readers that are gone."""

from __future__ import annotations

import gc
import weakref

from npzkit.checkpoint.retention import Readers


class Holder:
    """What reads a step as long as it exists."""


def test_a_reader_that_is_gone_is_forgotten():
    """Nothing is kept of an object that was collected, so that many loads take no memory."""
    readers, holder = Readers(), Holder()

    def is_reading(_):
        return True

    readers.hold(1, holder, is_reading)
    question = weakref.ref(is_reading)
    del is_reading
    assert readers.is_read(1)
    assert question() is not None
    del holder
    gc.collect()
    assert not readers.is_read(1)
    assert question() is None
