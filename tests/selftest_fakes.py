"""In the place of the objects that the self-test asks in child processes."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Coded:
    """Runs code, whatever it is asked for; what the code calls `answer` is the answer."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __getattr__(self, question: str) -> Any:
        names = {"os": os, "sys": sys, "time": time, "say": say, "answer": None}

        def run(*arguments: Any) -> Any:
            exec(self.code, names)
            return names["answer"]

        if question == "close":
            raise AttributeError(question)
        return run
