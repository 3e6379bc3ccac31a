"""The corpus that a recipe names: a folder of text, or an indexed dataset.

>>> read_corpus(load("nano")).train.name
'train'
"""

from __future__ import annotations

from bitstep.data.corpus import Corpus
from bitstep.data.indexed_corpus import indexed_corpus
from bitstep.train.recipe import Recipe


def read_corpus(recipe: Recipe, expect: str | None = None) -> Corpus:
    """Its two splits and its digest, which must be `expect` where that is given.

    Raises DataError as `Corpus.read` and `indexed_corpus` do.
    """
    data = recipe.data
    if not data.indexed:
        return Corpus.read(data.folder, held_out=data.held_out, expect=expect)
    return indexed_corpus(
        data.indexed, vocabulary=recipe.model.vocabulary, held_out=data.held_out, expect=expect
    )
