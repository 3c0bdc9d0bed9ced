"""Secrets in command lines. Incidents are shared, so a command line is redacted before anything is written of it.

By the name of an option, a variable or a key, and by the look of a value. What only looks like a secret costs a person
one value to fill in; what is missed is in a report for good. Names of tokens that a model reads are left alone.

A word of a command line may be a command line itself (sh -c), a JSON, a URL or a sentence. It is read as a shell reads
it, so a value ends where its quotes end.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from governor.core.base.secret_names import LOOKS, can_be_one, is_secret
from governor.core.base.shell_words import REDACTED, Piece, commands

NESTED_MAX: Final = 6  # A text within more quotes than this is hidden as a whole.
_PEM: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}-----.*?(-----END [A-Z0-9 ]{0,40}-----|\Z)", re.DOTALL)
_HOOK: Final = re.compile(
    r"(?i)(hooks\.slack\.com/(services|workflows|triggers)/|discord(app)?\.com/api/webhooks/\d+/|webhook\.office\.com/"
    r"|api\.telegram\.org/bot)[^\s\"'<]+"
)
# The user of a URL: with a password (in which an @ or a slash was not escaped), or a token alone.
_PASSWORD: Final = re.compile(r"(://[^\s/@:]{0,256}:)(?!<redacted>)([^\s/]{1,1024}|(?!\d{1,5}/)[^\s\"']{1,1024})@")
_USER: Final = re.compile(r"(https?://)(?!<redacted>)[^\s/@:]{1,1024}:?@")
_COPY: Final = re.compile(r"([\w.-]{1,256}:)(?!<redacted>)[^\s/@]{1,1024}(?=@(?!sha256:)[\w.-]+)")
_SCHEME: Final = re.compile(r"(?i)\b((bearer|basic)\s{1,4})[\w.~+/=-]{8,}")
_HEADER: Final = re.compile(r"(?i)\b((set-)?cookie|(proxy-)?authorization)(\s{0,4}:\s{0,4}+)(?!<redacted>)[^\n\"']+")
# "name": "value" of a JSON or a program; a value without quotes that holds others goes to the text's end.
_QUOTED: Final = re.compile(
    r"(?P<head>(?P<q>[\"'])(?P<name>[\w.+-]{1,128})(?P=q)\]?\s{0,64}[:=,]\s{0,64})"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[\[{\"'].*|[^\s,}\]]+)",
    re.DOTALL,
)
_IN_QUERY: Final = re.compile(r"(?P<head>(?<=[?&#])(?P<name>[\w.+-]{1,128})=)(?P<value>[^&#\s\"']+)")
_IN_LIST: Final = re.compile(r"(?P<head>(?<=;)\s{0,4}(?P<name>[\w. +-]{1,128}?)\s{0,4}=)(?P<value>[^;\"'\n]+)")
_FIRST: Final = re.compile(r"(?P<head>(?P<name>[-+]{0,2}[\w.+-]{1,128})[\"']?\s{0,4}[=:])(?P<value>.+)", re.DOTALL)
_INNER: Final = re.compile(r"(?<![\w.+-])(?P<name>[\w.+-]{1,128})[\"'\])]{0,3}[=:]")
_LAST_NAME: Final = re.compile(r"([\w.+-]{1,128})[\"'\])]{0,3}[:=]$|([A-Z][A-Z0-9_]{1,127}),$")
_SUBJECT: Final = re.compile(r"([\w.+-]{1,128})[\"'\])]{0,3}$")
_MANY: Final = re.compile(r"[\s;&|()<>`\"']")
_OPTION: Final = re.compile(r"--?[a-z][A-Za-z0-9_.-]{0,63}(=.*)?", re.DOTALL)
_MIXED: Final = re.compile(r"\d[A-Za-z]+\d+[A-Za-z]")
_REFERENCE: Final = re.compile(r"\$([A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_SHELL: Final = re.compile(r"(.*/)?((ba|da|z|k|c|tc|fi|a)?sh|python[\d.]*|perl|ruby|node|su|runuser|flock|xonsh)")
_SCRIPT: Final = re.compile(r"-[a-zA-Z]*[ce]|--command")
_DATABASE: Final = re.compile(r"(.*/)?(mysql\w*|mariadb[\w-]*|sshpass)")
_SSHPASS: Final = re.compile(r"(.*/)?sshpass")
# Programs that take a password behind a short option, and the option. Elsewhere it means something else.
_SHORT_OPTIONS: Final = tuple(
    (re.compile(rf"(.*/)?({programs})"), option)
    for programs, option in (
        (r"(redis|valkey|keydb|dragonfly)-cli", "-a"),
        (r"mongo\w*|cqlsh", "-p"),
        (r"ldap\w+", "-w"),
        (r"sqlcmd|bcp|mosquitto_\w+|zip|unzip", "-P"),
    )
)
# `aws configure set NAME VALUE`: the name stands alone. A sentence may say so too, of no program.
_SETTER: Final = re.compile(
    r"(.*/)?(aws|git|npm|pnpm|yarn|pip3?|poetry|conda|gcloud|az|dotenv|airflow|fly|flyctl|redis-cli|setenv)"
)
_SETS: Final = frozenset({"set", "config", "configure", "variables", "setenv"})
_NAME_ALONE: Final = re.compile(r"[A-Za-z_/][\w.+:/@-]{1,255}")
_SCHEMES: Final = frozenset({"bearer", "basic", "token", "digest", "apikey"})
_NO_WORDS: Final = frozenset({"=", ":", ":=", "==", ""})


def redacted(argv: Sequence[str], keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The command line with REDACTED in the place of each secret."""
    return tuple(_words([Piece(0, 0, _by_look(word)) for word in argv], keys, 0))


def command_text(argv: Sequence[str]) -> str:
    """The words as one printable line for a shell. What does not print is escaped as bash and zsh read it."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in argv)


def command_within(chars_max: int, argv: Sequence[str]) -> str:
    """The words in a line of so many characters. Where they are longer, a path is its last part, which names it."""
    text = " ".join(argv)
    if len(text) > chars_max:
        text = " ".join(word.rstrip("/").rsplit("/", 1)[-1] if word.startswith("/") else word for word in argv)
    return text[:chars_max]


def _by_look(text: str) -> str:
    text = _PEM.sub(REDACTED, text)
    text = _HOOK.sub(rf"\1{REDACTED}", text)
    text = _PASSWORD.sub(rf"\1{REDACTED}@", text)
    text = _USER.sub(rf"\1{REDACTED}@", text)
    text = _HEADER.sub(rf"\1\4{REDACTED}", text)
    text = _SCHEME.sub(rf"\1{REDACTED}", text)
    return LOOKS.sub(REDACTED, text)


@dataclass(slots=True)
class _Earlier:
    """What the words before one say of it."""

    last: str = ""
    has_password: bool = False  # The value of -p is one: a database is the first word, or sshpass any word.
    has_database: bool = False
    has_shell: bool = False
    has_login: bool = False
    has_setter: bool = False
    sets: bool = False
    short_options: frozenset[str] = frozenset()

    def add(self, word: str, is_first: bool) -> None:
        is_database = _DATABASE.fullmatch(word) is not None
        self.last = word
        self.has_password |= _SSHPASS.fullmatch(word) is not None or (is_first and is_database)
        self.has_database |= is_database
        self.has_shell |= _SHELL.fullmatch(word) is not None
        self.has_login |= word == "login"
        self.has_setter |= _SETTER.fullmatch(word) is not None
        self.sets |= self.has_setter and word.lower() in _SETS
        self.short_options |= {option for program, option in _SHORT_OPTIONS if program.fullmatch(word)}


def _words(words: Sequence[Piece], keys: Sequence[str], depth: int) -> list[str]:
    shown: list[str] = []
    before = ""  # The name whose value the next word is, perhaps.
    earlier = _Earlier()
    for number, piece in enumerate(words):
        word = piece.text
        if word in _NO_WORDS:
            subject = _SUBJECT.search(words[number - 1].text) if number and not before else None
            before = subject[1] if subject is not None and word else before
            shown.append(word)
        elif before and word.lower() in _SCHEMES and "auth" in before.lower():
            shown.append(word)
        elif before and _is_value(piece, before, keys):
            shown.append(REDACTED)
            before = ""
        else:
            is_script = earlier.has_shell and _SCRIPT.fullmatch(earlier.last) is not None
            shown.append(_text(word, keys, depth + 1) if is_script else _of_program(earlier, piece, keys, depth))
            before = _name_before(earlier, word)
        earlier.add(word, number == 0)
    return shown


def _is_value(piece: Piece, name: str, keys: Sequence[str]) -> bool:
    word = piece.text
    is_option = _OPTION.fullmatch(word) is not None and word.startswith("--") and _MIXED.search(word) is None
    is_reference = piece.expands and _REFERENCE.fullmatch(word) is not None
    return not is_option and not is_reference and can_be_one(word) and is_secret(name, keys, word)


def _name_before(earlier: _Earlier, word: str) -> str:
    """The name in this word, if its value is in the next one."""
    if earlier.last.endswith("wandb") and word == "login":
        return "--password"
    if word in earlier.short_options or (word.lower() == "auth" and "-a" in earlier.short_options):
        return "--password"
    if word == "-p":
        return "--password" if earlier.has_login or earlier.has_password else ""
    named = _LAST_NAME.search(word)
    if named is not None:
        return named[1] or named[2]
    if earlier.sets and _NAME_ALONE.fullmatch(word):
        return word.rpartition(":")[2]
    return word if word.startswith("-") and "=" not in word else ""


def _of_program(earlier: _Earlier, piece: Piece, keys: Sequence[str], depth: int) -> str:
    """The word, with what curl and database clients take as a password without a name."""
    word = piece.text
    head, colon, secret = word.partition(":")
    is_user = earlier.last in ("-u", "--user", "--proxy-user")
    if (is_user or word.startswith("-u")) and colon and secret and not secret.isdecimal() and "/" not in head:
        return f"{head}:{REDACTED}"
    if word.startswith("-p") and len(word) > 2 and earlier.has_database:
        return f"-p{REDACTED}"
    return _word(piece, keys, depth)


def _word(piece: Piece, keys: Sequence[str], depth: int) -> str:
    """One word, with its secrets hidden. What follows a secret's name at its beginning is hidden to its end."""
    word = piece.text
    first = _FIRST.fullmatch(word)
    if first is not None and _is_named(first["name"], first["value"], keys):
        is_reference = piece.expands and _REFERENCE.fullmatch(first["value"]) is not None
        return word if is_reference else first["head"] + REDACTED

    def hidden(found: re.Match[str]) -> str:
        value = found["value"]
        quote = value[0] if value[0] in "\"'" else ""
        bare = value.strip("\"'") if quote else value
        return f"{found['head']}{quote}{REDACTED}{quote}" if _is_named(found["name"], bare, keys) else found[0]

    for pattern in (_QUOTED, _IN_QUERY, _IN_LIST):
        word = pattern.sub(hidden, word)
    word = _COPY.sub(rf"\1{REDACTED}", word) if _COPY.match(word) else word
    if _MANY.search(word.replace(REDACTED, "")):
        return _text(word, keys, depth + 1)
    for inner in _INNER.finditer(word):
        value = word[inner.end() :]
        is_reference = piece.expands and _REFERENCE.fullmatch(value) is not None
        if value and not is_reference and not value.startswith(REDACTED) and _is_named(inner["name"], value, keys):
            return word[: inner.end()] + REDACTED
    return word


def _is_named(name: str, value: str, keys: Sequence[str]) -> bool:
    names = (name, name[2:]) if name.startswith(("-e", "-D")) else (name,)
    return can_be_one(value) and any(is_secret(each, keys, value) for each in names)


def _text(text: str, keys: Sequence[str], depth: int) -> str:
    """A text as a shell reads it, with its secrets hidden."""
    if depth > NESTED_MAX:
        return REDACTED
    shown: list[str] = []
    end = 0
    for pieces in commands(text):
        is_whole = len(pieces) == 1 and pieces[0].text == text
        for piece, word in zip(pieces, [text] if is_whole else _words(pieces, keys, depth), strict=True):
            raw = text[piece.start : piece.end]
            shown += (text[end : piece.start], raw if word == piece.text else _quoted(word, raw))
            end = piece.end
    return "".join((*shown, text[end:]))


def _quoted(word: str, raw: str) -> str:
    """The changed word in the quotes that it had."""
    if raw[0] == raw[-1] == "'" and "'" not in word and len(raw) > 1:
        return f"'{word}'"
    if raw[0] == raw[-1] == '"' and len(raw) > 1:
        return '"' + re.sub(r"([\\\"`])", r"\\\1", word) + '"'
    return shlex.quote(word) if _MANY.search(word.replace(REDACTED, "")) else word


def _escaped(word: str) -> str:
    return "$'" + "".join(_escaped_char(char) for char in word) + "'"


def _escaped_char(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    if char.isprintable():
        return char
    is_byte = "\udc80" <= char <= "\udcff"  # Not UTF-8, as os.fsdecode shows it.
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass"))
