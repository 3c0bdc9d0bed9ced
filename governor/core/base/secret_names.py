"""Which names name a secret, and which values look like one whatever their name is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_OF_KEYS: Final = (
    r"(api|access|secret|private|account|auth|signing|encryption|decryption|licen[cs]e|wandb|aws|openai|azure|gcp|hf|ssh"
    r"|master|shared|storage|session|service|client|app|application|admin|deploy|gpg|pgp|rsa|hmac|subscription|sas"
    r"|anthropic|comet|neptune|clearml|mlflow|sentry|datadog|dd|stripe|sendgrid|github|gitlab|google|gemini|cohere"
    r"|mistral|groq|together|replicate|runpod|ngc|nvidia|user)"
)
_OF_TOKENS: Final = (
    r"(auth|access|api|hf|hub|huggingface|refresh|bearer|session|secret|git|github|gitlab|wandb|slack|bot)"
)
_ENDING: Final = r"(_?\d+|_(b64|base64|hex|pem|raw|value|string|str))?$"
_NAME: Final = re.compile(
    r"(^|_)(secret|secrets|credential|credentials|bearer|jwt|cookie|cookies|apikey|apikeys|mnemonic|webhook)(_|$)"
    r"|password|passwd|passphrase|passcode|requirepass|masterauth"
    rf"|(^|_)(auth|authorization|token|signature|sig){_ENDING}"
    rf"|(^|_){_OF_KEYS}_?keys?{_ENDING}"
    rf"|(^|_){_OF_TOKENS}_?tokens?{_ENDING}"
    r"|(^|_)(git|github|gitlab|gh|azure|ado|devops|bitbucket)_?pat$"
)
# What a tokenizer or a data set calls a token.
_READ_BY_MODELS: Final = re.compile(
    r"(^|_)(eos|bos|pad|unk|mask|cls|sep|stop|start|end|image|video|audio|special|additional|first|last|next|per|by|max"
    r"|min|num|n|eot|sot|eod|bod|think|tool|prefix|suffix|middle|newline|blank|space|word|text|vision|separator"
    r"|placeholder|prompt|response|answer|question|reward|dummy|boundary|new|target|source|context)_token$"
)
# Names of secrets and of ordinary things. The value decides.
_SOMETIMES: Final = re.compile(r"(^|_)(pass|pwd|rsa|pin|otp)$|^pg_?pass$")
_PASSES: Final = re.compile(
    r"(^|_)(one|two|first|second|single|multi|n|num|max|forward|backward|low|high|band|all|by)_pass$"
)
_SELDOM: Final = re.compile(r"(^|_)(key|keys|tokens|code|pat|login)$")
_ORDINARY: Final = re.compile(r"\d{1,4}|[~.]?/.*|\.{1,2}", re.DOTALL)
_RANDOM: Final = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[A-Za-z0-9+=]{12,}")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_SECRETS: Final = frozenset({"", "true", "false", "none", "null", "yes", "no", "0", "1", "auto", "$", "<redacted>"})

LOOKS: Final = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|(AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}"
    r"|gl(pat|ptt|dt|rt)-[\w-]{16,}|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|wandb_v\d_\w{16,}"
    r"|local-[0-9a-f]{40}|nvapi-[\w-]{16,}|npm_\w{30,}|pypi-[\w-]{30,}|[rsp]k_(live|test)_\w{16,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]*)"
)


def is_secret(name: str, keys: Sequence[str] = (), value: str | None = None) -> bool:
    """Whether what is called so is a secret. `keys`: names of the user's own, in which * is any text.

    Some names are those of secrets and of ordinary things: `value` decides, and without one they are not.
    """
    bare = name.lstrip("-+")
    plain = _plain(bare)
    for key in keys:
        own = re.escape(key.lstrip("-").replace("-", "_").lower()).replace(r"\*", ".*")
        for text in (bare, bare.rsplit(".", 1)[-1]):
            if re.fullmatch(own, text.replace("-", "_").replace(".", "_").lower()) or re.fullmatch(own, _plain(text)):
                return True
    if _NAME.search(plain) is not None:
        return _READ_BY_MODELS.search(plain) is None
    if value is None:
        return False
    if _SOMETIMES.search(plain) is not None:
        return _PASSES.search(plain) is None and _ORDINARY.fullmatch(value) is None
    return _SELDOM.search(plain) is not None and _RANDOM.fullmatch(value) is not None


def _plain(name: str) -> str:
    return _CAMEL.sub("_", name).replace("-", "_").replace(".", "_").lower()


def can_be_one(value: str) -> bool:
    """Whether it can be a secret itself: no flag's value, and not redacted already."""
    return value.rstrip(",;}])").lower() not in _NO_SECRETS
