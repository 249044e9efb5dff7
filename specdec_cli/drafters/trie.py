"""Guesses that share their beginnings, as a tree (see `specdec_cli.decoding.tree`). Needs no torch."""

from __future__ import annotations


class Trie:
    """Tokens with their parents, each continuation once.

    Attributes:
        token_ids, parents: in the order in which they were added, so that a parent stands before its children.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self._places: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token_id: int) -> int:
        """The place of the parent's child with that token; made where there is none."""
        place = self._places.setdefault((parent, token_id), len(self.token_ids))
        if place == len(self.token_ids):
            self.token_ids.append(token_id)
            self.parents.append(parent)
        return place
