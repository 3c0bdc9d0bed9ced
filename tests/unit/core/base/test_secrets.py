"""Secrets on command lines: what is redacted, what is left so that the command can still be run."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from governor.core.base.secrets import REDACTED, command_text, redacted

CANARY = "SECRETCANARY11"
HIDDEN = [
    ["--api_key", CANARY],
    ["--api-key", CANARY],
    [f"--token={CANARY}"],
    [f"--wandb.api_key={CANARY}"],
    [f"+logger.wandb.api_key={CANARY}"],
    ["--hub_token", CANARY],
    ["-password", CANARY],
    [f"MY_SECRET={CANARY}"],
    [f"AWS_SECRET_ACCESS_KEY={CANARY}"],
    [f"WANDB_API_KEY={CANARY}"],
    ["--data", f"https://ada:{CANARY}@host/x"],
    ["--dsn", f"postgres://:{CANARY}@host/x"],
    ["--url", f"https://host/x?a=1&access_token={CANARY}&b=2"],
    ["sh", "-c", f"WANDB_API_KEY={CANARY} python train.py --token {CANARY} --lr 1"],
    ["--config", f'{{"api_key": "{CANARY}", "lr": 1}}'],
    ["--header", f"Authorization: Bearer {CANARY}"],
    ["hf_" + CANARY * 2],
    ["--x", "sk-" + CANARY * 2],
    ["--x", "AKIA" + "SECRETCANARY1123"],
    ["--x", "ghp_" + CANARY * 2],
    ["--x", f"eyJ{CANARY}.eyJ{CANARY}.{CANARY}"],
]
LEFT = [
    ["python", "train.py", "--max_tokens", "4096", "--tokenizer", "gpt2", "--eos_token", "</s>"],
    ["--pad_token=<pad>", "--tokens-per-step", "1000", "--num_key_value_heads", "8", "--label_key", "text"],
    ["--use_auth_token", "--lr", "1e-4", "--token", "True"],
    ["--author", "ada", "--keyword", "x", "--authors=ada", "--secretary", "eve"],
    ["--data", "s3://bucket/tokens", "--url", "http://host:8080/a@b", "a:b"],
    ["sh", "-c", "python train.py --token $HF_TOKEN"],
    ["--revision", "a" * 40],
]


@pytest.mark.parametrize("argv", HIDDEN, ids=" ".join)
def test_secrets_are_hidden_and_the_rest_stays(argv: list[str]) -> None:
    shown = redacted(["python", "train.py", *argv, "--lr", "1"])
    assert CANARY not in " ".join(shown)
    assert REDACTED in " ".join(shown)
    assert shown[:2] == ("python", "train.py")
    assert shown[-2:] == ("--lr", "1")
    assert redacted(shown) == shown, "twice is once"


@pytest.mark.parametrize("argv", LEFT, ids=" ".join)
def test_what_is_no_secret_is_left(argv: list[str]) -> None:
    assert redacted(argv) == tuple(argv)


def test_keys_of_ones_own_are_names_or_patterns() -> None:
    argv = ["--license-pin", "1234", "data.my_salt=x", "--pin", "5"]
    assert redacted(argv, ("license_pin", "*_salt")) == (
        "--license-pin",
        REDACTED,
        f"data.my_salt={REDACTED}",
        "--pin",
        "5",
    )


def test_the_value_to_fill_in_is_quoted_for_a_shell() -> None:
    assert command_text(redacted(["t.py", "--api_key", CANARY])) == "t.py --api_key '<redacted>'"


@pytest.mark.parametrize("word", ["a\x1b]0;x\x07b", "two\nlines", "it's\t\\x", "\udc80byte", "é\u2028"])
def test_what_does_not_print_is_escaped_as_bash_reads_it(word: str) -> None:
    text = command_text([word])
    assert text.isprintable()
    said = subprocess.run(["bash", "-c", f"printf %s {text}"], capture_output=True, check=True).stdout
    assert said == word.encode("utf-8", "surrogateescape")
    assert command_text(["plain word"]) == shlex.quote("plain word")
