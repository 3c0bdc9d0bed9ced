"""What a receiver's server is told to answer, and what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SAFETY_S = 30


@dataclass
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    """What the server does with one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False
    breaks_off: bool = False  # In the middle of the answer.
    endless: bool = False  # Talks on until it is hung up on.


class Told:
    """The server's script and what it has heard. After the script's end everything is taken."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.asked: list[Asked] = []
        self.url = ""
        self.heard = threading.Condition()
        self.released = threading.Event()
        self.hung_up = threading.Event()

    def then(self, *answers: Answer) -> None:
        self.script.extend(answers)

    def hear(self, asked: Asked) -> Answer:
        with self.heard:
            self.asked.append(asked)
            self.heard.notify_all()
            return self.script.pop(0) if self.script else Answer()

    def until(self, look: Callable[[], Any]) -> Any:
        """Look again whenever a request has come."""
        with self.heard:
            assert self.heard.wait_for(look, SAFETY_S), self.asked
            return look()
