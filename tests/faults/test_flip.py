import pytest

from bitstep.errors import UsageError
from bitstep.faults import Flip, parse_flips


def test_words_and_json_name_the_same_flip():
    words = parse_flips("stray step=2 tensor=grad:0.weight position=after-backward bit=7")
    assert words == (
        Flip(kind="stray", step=2, tensor="grad:0.weight", position="after-backward", bit=7),
    )
    assert parse_flips(str(words[0].to_json()).replace("'", '"')) == words


def test_none_is_no_flip():
    assert parse_flips("none") == ()
    assert parse_flips("[]") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upset step=1", "no kind of flip is named 'upset': output, input, stray"),
        ("output step=0", "step is 0 in a flip"),
        ("stray step=1", "a stray write names its tensor; an output and an input do not"),
        ("output step=1 position=after-backward", "a position is for a stray write"),
        ("stray step=1 tensor=param:w position=now", "no position is named 'now'"),
        ("output step=one", "not a flip: invalid literal"),
        ("output", "not a flip"),
        ("output step=1 place=3", "a flip has the keys kind, step, rank"),
        ("{", "a flip is not JSON"),
    ],
)
def test_a_text_that_is_no_flip_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_flips(text)
