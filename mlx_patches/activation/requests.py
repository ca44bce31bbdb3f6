"""The patches that this process requests: the union of its requests is in effect.

``apply()`` adds to one permanent request, and each ``patched()`` block has its own. So blocks may
nest and overlap, in threads and in tasks: the end of one removes the patches that no other request
holds.
"""

from collections.abc import Iterable

from ..core.patch import Patch


class Request:
    """Patches that are requested together and dropped together.

    Args:
        by_model: importing a model adds the patches of its entry.
    """

    def __init__(self, by_model: bool):
        self.by_model = by_model
        self.patches: dict[str, Patch] = {}
        # The (distribution, model) pairs whose entries were added.
        self.entries: set[tuple[str, str]] = set()
        # Ids the user removed; a model's entry must not re-add them.
        self.taken_out: set[str] = set()


class Requests:
    """The current requests. Change them only under the manager's lock."""

    def __init__(self) -> None:
        # Replaced as a whole: other threads iterate.
        self.held: tuple[Request, ...] = ()
        self._lasting: Request | None = None

    def patches(self) -> list[Patch]:
        return list({p.id: p for one in self.held for p in list(one.patches.values())}.values())

    def by_model(self) -> list[Request]:
        return [one for one in self.held if one.by_model]

    def drop(self, request: Request) -> None:
        self.held = tuple(one for one in self.held if one is not request)

    def keep(self, request: Request) -> None:
        """Make a request permanent, merged with those of previous calls."""
        if request not in self.held:
            return  # another thread has restored it meanwhile
        if (old := self._lasting) in self.held and old is not None:
            self.drop(old)
            request.patches = old.patches | request.patches
            if not request.by_model:
                request.by_model, request.entries = old.by_model, old.entries
                request.taken_out = old.taken_out - request.patches.keys()
        self._lasting = request

    def take_out(self, ids: Iterable[str]) -> None:
        for request in self.held:
            request.taken_out |= {*ids}
            for id_ in ids:
                request.patches.pop(id_, None)
