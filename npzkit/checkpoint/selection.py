"""Parts of a step's tree, by patterns of keys.

Owns what is left of a tree if only some of it is wanted. What a pattern means is
`npzkit.members.selection`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npzkit.members import selection
from npzkit.members.containers import child_key, children_of, rebuilt
from npzkit.members.keys import missing
from npzkit.members.nesting import MISSING
from npzkit.members.selection import UNREAD

__all__ = ["UNREAD", "Selection"]


class Selection(selection.Selection):
    """What of a step's tree is wanted."""

    def prune(self, tree: Any, keys: Sequence[str], path: str | None, prefix: str = "") -> Any:
        """Return a tree without what is not wanted: `UNREAD`, numbers, strings, empty parts.

        A list or tuple that loses items becomes a dict by position, a namedtuple
        one by name.

        Raises
        ------
        MemberNotFoundError
            A pattern matches nothing; `keys` and `path` are for its message.
        """
        pruned = self._pruned(tree, prefix)
        for pattern in self._patterns:
            if pattern not in self._used:
                raise missing(pattern, keys, path)
        return {} if pruned is MISSING else pruned

    def _pruned(self, node: Any, key: str) -> Any:
        items = children_of(node)
        if not items:
            # The root has no key.
            is_wanted = node is not UNREAD and (not key or key in self)
            return node if is_wanted else MISSING
        pruned = {name: self._pruned(item, child_key(key, name)) for name, item in items.items()}
        kept = {name: item for name, item in pruned.items() if item is not MISSING}
        if not kept:
            return MISSING
        if isinstance(node, Mapping):
            return kept
        if len(kept) == len(items):
            return rebuilt(node, kept)
        return {str(name): item for name, item in kept.items()}
