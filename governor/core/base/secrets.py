"""Secrets in command lines. Incidents are shared, so a command line is redacted before anything is written of it.

By the name of an option, a variable or a key, and by the look of a value. What only looks like a secret costs a person
one value to fill in; what is missed is in a report for good. Names of tokens that a model reads are left alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

REDACTED: Final = "<redacted>"

_NAME: Final = re.compile(
    r"(^|_)(secret|secrets|password|passwd|passphrase|credential|credentials|bearer|jwt|cookie|apikey)(_|$)"
    r"|(^|_)(auth|authorization|token)$"
    r"|(^|_)(api|access|secret|private|account|auth|signing|encryption|license|wandb|aws|openai|azure|gcp|hf)_key$"
)
# What a tokenizer or a data set calls a token.
_READ_BY_MODELS: Final = re.compile(
    r"(^|_)(eos|bos|pad|unk|mask|cls|sep|stop|start|end|image|video|audio|special|additional|first|last|next|per|by"
    r"|max|min|num|n)_token$"
)
_VALUE: Final = re.compile(
    r"(?<![\w-])(hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|(AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}|wandb_v\d_\w{16,}|local-[0-9a-f]{40}"
    r"|eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]*)"
)
_USERINFO: Final = re.compile(r"(://[^\s/@:]{0,256}:)[^\s/@]{1,1024}(?=@)")
_SCHEME: Final = re.compile(r"(?i)\b((bearer|basic)\s{1,4})[\w.~+/=-]{8,}")
# NAME=value, "name": "value", --name value; also within one word, as in sh -c or a JSON. The bounds keep it linear.
_PAIR: Final = re.compile(
    r"(?<![\w.+-])(?P<name>[\w.+-]{1,128})(?P<sep>[\"']?\s{0,4}[=:]\s{0,4}|\s{1,4})(?P<quote>[\"']?)"
    r"(?P<value>[^\s\"'&;,}]+)"
)
_WORDS_THAT_ARE_NO_SECRET: Final = frozenset({"", "true", "false", "none", "null", "yes", "no", "0", "1", "auto"})


def is_secret(name: str, keys: Sequence[str] = ()) -> bool:
    """Whether what is called so is a secret. `keys`: names of the user's own, in which * is any text."""
    plain = name.lstrip("-+").replace("-", "_").replace(".", "_").lower()
    last = name.rsplit(".", 1)[-1].lstrip("-+").replace("-", "_").lower()
    for key in keys:
        own = re.escape(key.lstrip("-").replace("-", "_").lower()).replace(r"\*", ".*")
        if re.fullmatch(own, plain) or re.fullmatch(own, last):
            return True
    return _NAME.search(plain) is not None and _READ_BY_MODELS.search(plain) is None


def redacted(argv: Sequence[str], keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The command line with REDACTED in the place of each secret."""
    words: list[str] = []
    after_secret = False
    for word in argv:
        if after_secret and not word.startswith("--") and _is_value(word):
            words.append(REDACTED)
        else:
            words.append(_within(word, keys))
        after_secret = word.startswith("-") and "=" not in word and is_secret(word, keys)
    return tuple(words)


def command_text(argv: Sequence[str]) -> str:
    """The words as one printable line for a shell. What does not print is escaped as bash and zsh read it."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in argv)


def _within(word: str, keys: Sequence[str]) -> str:
    def pair(found: re.Match[str]) -> str:
        name, sep, value = found["name"], found["sep"], found["value"]
        is_option = name.startswith("-")
        if (sep.isspace() and not is_option) or not _is_value(value) or not is_secret(name, keys):
            return found[0]
        return f"{name}{sep}{found['quote']}{REDACTED}"

    word = _USERINFO.sub(rf"\1{REDACTED}", word)
    word = _SCHEME.sub(rf"\1{REDACTED}", word)
    return _VALUE.sub(REDACTED, _PAIR.sub(pair, word))


def _is_value(text: str) -> bool:
    """Whether it can be the secret itself: no flag's value, no reference to a variable, not redacted already."""
    return text.lower() not in _WORDS_THAT_ARE_NO_SECRET and not text.startswith(("$", REDACTED))


def _escaped(word: str) -> str:
    return "$'" + "".join(_escaped_char(char) for char in word) + "'"


def _escaped_char(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    if char.isprintable():
        return char
    is_byte = "\udc80" <= char <= "\udcff"  # Not UTF-8, as os.fsdecode shows it.
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass"))
