"""What may be kept of a text that somebody typed: a command, an option, a variable.

1. A secret is known by the name before it (`--token X`, `hub.password=X`, `"api_key": "X"`), by its
   place in an address, or by its shape; it is left out.
2. A home directory becomes `~`: whose it is bears on nothing.
3. Code given by -c, a text over many lines and a very long one are kept as a digest, and so is a
   long run of letters and digits that may be a key: two of them still compare.

>>> without_secrets(["train.py", "--token=abc", "https://me:abc@host/x", "/home/me/data"])
['train.py', '--token=(left out)', 'https://(left out)@host/x', '~/data']
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from bitstep.contract.versions import digest_of

LEFT_OUT: Final = "(left out)"
LONGEST: Final = 160
"""Characters of a word that are kept; of a longer one a digest is."""

_NAME: Final = (
    r"(?:[a-z]*(?:token|secret|password|passwd|passphrase)"
    r"|(?<![a-z])(?:credentials?|auth|authorization|pwd|pw|pass|bearer|cookie|signature|sig)"
    r"|(?:api|access|secret|private|account|ssh|encryption)[-_]?key)(?![a-z])"
)
_SECRET: Final = re.compile(rf"(?i){_NAME}")
_NAMED: Final = re.compile(
    rf"""(?i)({_NAME}[\w-]*["']?\s*[:=]\s*["']?)(?:(?:bearer|basic)\s+)?[^\s"',;&}}]+"""
)
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+")
_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/\s]*(?=@)|(?<![\w/])[\w.+-]+:[^\s/@]+(?=@[\w.-])")
_SHAPED: Final = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|npm_|dckr_pat_|eyJ)"
    r"[\w.-]{8,}"
)
_LONG: Final = re.compile(
    r"(?:\b[0-9a-fA-F]{32,}\b"
    r"|(?=[A-Za-z0-9+=]*[0-9])(?=[A-Za-z0-9+=]*[a-z])(?=[A-Za-z0-9+=]*[A-Z])[A-Za-z0-9+=]{20,})"
)
_HOMES: Final = re.compile(r"/(?:home|Users)/[^/\s:]+|/root(?![\w.-])")


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name may hold a secret."""
    return _SECRET.search(name) is not None


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command with the values of secrets left out, by the names of their options."""
    words: list[str] = []
    before = ""
    for word in command:
        option = before.startswith("-") and "=" not in before
        if option and is_secret(before):
            words.append(LEFT_OUT)
        elif before == "-c":
            words.append(digest_of(word))
        else:
            words.append(cleaned(word))
        before = word
    return words


def cleaned(word: str) -> str:
    """One word of a command without the secrets in it."""
    name, equals, _ = word.partition("=")
    if equals and is_secret(name) and name.isprintable() and len(name) <= LONGEST:
        return f"{cleaned(name)}={LEFT_OUT}"  # an address, perhaps, with another secret in it
    if len(word) > LONGEST or not word.isprintable():
        return digest_of(word)
    word = _IN_ADDRESS.sub(LEFT_OUT, word)
    word = _NAMED.sub(rf"\1{LEFT_OUT}", word)
    word = _SHAPED.sub(LEFT_OUT, _SCHEME.sub(rf"\1 {LEFT_OUT}", word))
    word = _LONG.sub(lambda found: digest_of(found[0]), word)
    return _HOMES.sub("~", _without_home(word))


def _without_home(word: str) -> str:
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", word) if len(home) > 1 else word
