"""Keys: every random draw starts from the words that say what it is for."""

from bitstep.state.keys import key


def test_a_key_has_its_published_value():
    assert key("data", 7, 0) == 0xA6F42B0506587FAD
    assert key() == 0xB0712D4F57473208


def test_the_same_words_give_the_same_key():
    assert key("draw", 1, 2, 3, "blocks.0") == key("draw", 1, 2, 3, "blocks.0")


def test_words_cannot_run_into_each_other():
    assert key("ab", "c") != key("a", "bc")
    assert key(1, 23) != key(12, 3)
    assert key("a") != key("a", "")


def test_a_number_and_its_digits_are_different_words():
    assert key(7) != key("7")


def test_keys_are_unsigned_64_bit_and_do_not_repeat():
    keys = {key("draw", step, rank) for step in range(200) for rank in range(50)}
    assert len(keys) == 10_000
    assert all(0 <= k < 2**64 for k in keys)
