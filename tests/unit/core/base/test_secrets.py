"""Secrets on command lines: what is redacted, what is left so that the command can still be run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.secrets import NESTED_MAX, command_text, command_within, redacted
from governor.core.base.shell_words import REDACTED
from tests.sweeps import share_of

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
    ["--x", "glpat-" + CANARY * 2],
    ["--x", "xoxb-" + CANARY],
    ["--slack", f"https://hooks.slack.com/services/T0/B0/{CANARY}"],
    ["--pem", f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----\n"],
    ["--private_key", f"-----BEGIN\n{CANARY}"],
    # What follows a name in one word is hidden to its end.
    [f"--password=a;{CANARY}"],
    [f"--password=a,{CANARY}"],
    [f"--password=a}}{CANARY}"],
    [f"--password=it's{CANARY}"],
    [f"--password=two {CANARY}"],
    [f"--secret=\n{CANARY}"],
    ["--password", f"--{CANARY}"],
    ["--password", f"a&{CANARY}"],
    ["--token", f"${CANARY}"],
    ["--api_key", "=", CANARY],
    ["--api_key", "", CANARY],
    ["--hf-token:", CANARY],
    # Other names.
    ["--accessToken", CANARY],
    ["--hfToken", CANARY],
    ["--wandbApiKey", CANARY],
    ["--openai-apikey", CANARY],
    ["--wandb_api_key_2", CANARY],
    ["--github_pat", CANARY],
    ["--passcode", CANARY],
    ["--pass", CANARY],
    ["--pwd", CANARY],
    [f"PGPASSWORD={CANARY}"],
    [f"DB_PASS={CANARY}"],
    [f"--key={CANARY}"],
    [f"SharedAccessSignature=sv=1&sig={CANARY}"],
    ["--storage", f"DefaultEndpointsProtocol=https;AccountKey={CANARY};EndpointSuffix=x"],
    ["--dsn", f"Server=h;Password={CANARY} x;Database=d"],
    # URLs and headers.
    ["--url", f"https://{CANARY}@host/x"],
    ["--url", f"https://h/x?sig={CANARY}&se=1"],
    ["--url", f"https://h/x?X-Amz-Signature={CANARY}"],
    ["--dsn", f"postgres://u:a@{CANARY}@host/x"],
    ["--mongo", f"mongodb://u:p{CANARY}/x@host"],
    [f"user:{CANARY}@host"],
    ["--header", f"Authorization: token {CANARY}"],
    ["--header", f"X-Api-Key: {CANARY}"],
    ["--header", f"Cookie: a=b; session={CANARY}"],
    # What a shell is given.
    ["bash", "-c", f"export WANDB_API_KEY={CANARY}; python t.py"],
    ["sh", "-c", f"export TOKEN='{CANARY} x'; python t.py"],
    ["sh", "-c", f'PASSWORD="a b{CANARY}" python t.py'],
    ["sh", "-c", f"PASSWORD=a\\ {CANARY} python t.py"],
    ["sh", "-c", f"PASSWORD=$'a\\'{CANARY}' python t.py"],
    ["sh", "-c", f"env HF_TOKEN={CANARY} python t.py"],
    ["sh", "-c", f"time HF_TOKEN={CANARY} python t.py"],
    ["sh", "-c", f"docker run -e HF_TOKEN={CANARY} -eTOKEN={CANARY} x"],
    ["sh", "-c", f"python t.py --verbose --token {CANARY}"],
    ["sh", "-c", f"python t.py --bf16 --api_key={CANARY}"],
    ["sh", "-c", f"python -m train --token {CANARY}"],
    ["sh", "-c", f"bash -c \"sh -c 'x --token {CANARY}'\""],
    ["sh", "-c", f"# it's\nexport TOKEN='{CANARY} x'"],
    ["sh", "-c", f"curl -u user:{CANARY} h"],
    ["sh", "-c", f"curl -H 'Authorization: token {CANARY}' h"],
    ["sh", "-c", f"wandb login {CANARY}; sshpass -p {CANARY} ssh h; mysql -p{CANARY}"],
    ["sh", "-c", f"docker login reg.io -u me -p {CANARY}"],
    ["docker", "login", "reg.io", "-u", "me", "-p", CANARY],
    ["sudo", "mysql", f"-p{CANARY}"],
    ["sudo", "sshpass", "-p", CANARY, "ssh", "h"],
    ["sh", "-c", f"sudo mysql -u me -p{CANARY} db"],
    ["sh", "-c", f"t.py --token '${CANARY}'"],
    ["srun", f"--export=ALL,WANDB_API_KEY={CANARY},A=1"],
    ["sbatch", "--wrap", f"export WANDB_API_KEY={CANARY}; srun t.py"],
    ["ssh", "host", f"cd x; HF_TOKEN={CANARY} python t.py"],
    ["python", "-c", f'import os; os.environ["WANDB_API_KEY"] = "{CANARY}"'],
    ["python", "-c", f'os.environ.setdefault("HF_TOKEN", "{CANARY}"); login(token="{CANARY}")'],
    ["--config", f'{{"apiKey":"a\\"{CANARY}","lr":1}}'],
    ["--config", f'{{"secrets": ["a", "{CANARY}"], "lr": 1}}'],
    ["--config", f"{{api_key:{CANARY},lr:1}}"],
    # What a program takes behind a short option, or behind a name that stands alone.
    ["redis-cli", "-h", "host", "-a", CANARY, "ping"],
    ["sh", "-c", f"redis-cli -a {CANARY} ping; redis-cli AUTH {CANARY}; redis-cli config set requirepass {CANARY}"],
    ["sudo", "/usr/bin/mongosh", "-u", "ada", "-p", CANARY],
    ["ldapsearch", "-x", "-w", CANARY],
    ["mosquitto_pub", "-u", "ada", "-P", CANARY],
    ["unzip", "-P", CANARY, "data.zip"],
    ["aws", "configure", "set", "aws_secret_access_key", f"{CANARY}/abcd"],
    ["aws", "configure", "set", "--profile", "x", "aws_session_token", CANARY],
    ["sh", "-c", f"aws configure set aws_secret_access_key {CANARY} && python t.py"],
    ["npm", "config", "set", "//registry.npmjs.org/:_authToken", CANARY],
    ["git", "config", "--global", "github.token", CANARY],
    ["csh", "-c", f"setenv WANDB_API_KEY {CANARY}; python t.py"],
    # A line of a log.
    [f"RuntimeError: can't log in, token={CANARY}: it's refused"],
    [f"401 for Authorization: token {CANARY}"],
]
LEFT = [
    ["python", "train.py", "--max_tokens", "4096", "--tokenizer", "gpt2", "--eos_token", "</s>"],
    ["--pad_token=<pad>", "--tokens-per-step", "1000", "--num_key_value_heads", "8", "--label_key", "text"],
    ["--use_auth_token", "--lr", "1e-4", "--token", "True"],
    ["--author", "ada", "--keyword", "x", "--authors=ada", "--secretary", "eve"],
    ["--data", "s3://bucket/tokens", "--url", "http://host:8080/a@b", "a:b"],
    ["sh", "-c", "python train.py --token $HF_TOKEN"],
    ["--revision", "a" * 40],
    ["tokens_per_step=4096", "--tokenizer", "gpt2", "--max-tokens", "4096", "--pass-through", "x"],
    ["--tokenizer=meta-llama/Llama-3.1-8B", "model.tokenizer.path=/data/tok", "--num_pass", "2", "--two_pass", "full"],
    ["--key", "text", "--keys", "input_ids,labels", "--label-key=y", "--primary_key", "id", "--tokens", "10B"],
    ["--stop_token=</s>", "--image_token_id", "32000", "--per-token-loss", "x", "--token_type_ids", "a"],
    ["--signal", "TERM", "--sigma", "0.1", "--design=x", "--pat", "*.bin", "--passes", "3", "--compass", "north"],
    ["--pass", "2", "PWD=/home/ada", "--token-file", "/run/token", "--secretary=eve", "--authority", "x"],
    ["python", "-m", "torch.distributed.run", "--nproc_per_node=8", "--rdzv-endpoint=host:29500", "t.py"],
    ["docker", "run", "--name", "mysql", "-p", "3306:3306", "img"],
    ["docker", "run", "-p", "8080:80", "-u", "1000:1000", "img@sha256:abc", "-v", "/a:/b:ro"],
    ["deepspeed", "--include", "localhost:0,1", "t.py", "--deepspeed", "ds.json", "--fp16_opt_level=O2"],
    ["aws", "configure", "set", "region", "eu-west-1"],
    ["redis-cli", "-h", "host", "config", "set", "maxmemory", "2gb"],
    ["python", "train.py", "-a", "resnet50", "-P", "3", "-w", "8"],
    ["ValueError: cannot set token embeddings of the model; config has 8 token types"],
    ["git@github.com:org/repo.git", "ssh://git@host/repo", "s3://bucket/key/part-0", "gs://b/tokens/x?a=1&b=2"],
    ["sh", "-c", "export OMP_NUM_THREADS=8; cd /x && exec python t.py --lr 1e-4 2>&1 | tee 'my log'"],
    ["bash", "-lc", 'source ~/.bashrc; torchrun --nproc_per_node=$N t.py --token "$HF_TOKEN" --x ${Y}'],
    ["sh", "-c", "HF_TOKEN=$(cat /run/token) python t.py --tokens_per_step=8"],
    ["python", "-c", 'import t; t.main(tokens=4096, pad_token="<pad>", key="text")'],
    ["optimizer.lr=1e-4", "+data.key=text", "~logger", "model={a: 1, b: [2, 3]}", '{"lr": 1, "tokens": [1, 2]}'],
    ["ValueError: it's 3 tokens: the tokenizer's max is 2 (got 'a b')"],
    ["CUDA error: device-side assert at step=4, key 'loss' (rank 3)"],
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


def test_a_script_is_left_readable() -> None:
    script = f"export HF_TOKEN='{CANARY} x' A=1; cd /x && python t.py --token {CANARY} --lr 1 \"$B\" | tee 'a b'"
    assert redacted(["sh", "-c", script])[2] == (
        "export HF_TOKEN=<redacted> A=1; cd /x && python t.py --token <redacted> --lr 1 \"$B\" | tee 'a b'"
    )
    said = f'{{"lr": 1, "api_key": "{CANARY}", "x": "y"}}'
    assert redacted(["--config", said])[1] == '{"lr": 1, "api_key": "<redacted>", "x": "y"}'


PLACES: dict[str, Callable[[str], list[str]]] = {
    "option": lambda v: ["--password", v],
    "option=": lambda v: [f"--api-key={v}"],
    "name=": lambda v: [f"WANDB_API_KEY={v}"],
    "dotted": lambda v: [f"+logger.wandb.apiKey={v}"],
    "header": lambda v: ["-H", f"X-Api-Key: {v}"],
    "export": lambda v: ["bash", "-c", f"export WANDB_API_KEY={shlex.quote(v)}; t.py"],
    "env": lambda v: ["sh", "-c", f"env A=1 HF_TOKEN={shlex.quote(v)} t.py --bf16"],
    "word in sh": lambda v: ["sh", "-c", f"t.py --verbose {shlex.quote('--password=' + v)} --lr 1"],
    "option in sh": lambda v: ["sh", "-c", f"python -m t --token {shlex.quote(v)}"],
    "in quotes": lambda v: ["sh", "-c", f"t.py --token {_in_double_quotes(v)} && x"],
    "sh in sh": lambda v: ["sh", "-c", f"ssh h bash -c {shlex.quote('t --token ' + shlex.quote(v))}"],
    "json": lambda v: ["--config", json.dumps({"lr": 1, "api_key": v, "x": 2}, ensure_ascii=False)],
    "json in sh": lambda v: [
        "sh",
        "-c",
        "t --c " + shlex.quote(json.dumps({"api_key": v, "x": 2}, ensure_ascii=False)),
    ],
    "python": lambda v: ["python", "-c", f'import os\nos.environ["HF_TOKEN"] = {json.dumps(v, ensure_ascii=False)}'],
    "query": lambda v: ["--url", f"https://h/x?a=1&sig={quote(v, safe='')}&b=2"],
    "userinfo": lambda v: ["--url", f"https://u:{quote(v, safe='')}@h/x"],
}


def _in_double_quotes(value: str) -> str:
    return '"' + re.sub(r'([\\"$`])', r"\\\1", value) + '"'


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=share_of(150), deadline=None, derandomize=True)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12))
def test_no_value_is_shown_whatever_is_in_it(place: str, value: str) -> None:
    """The end of the value is what is looked for: a value that is cut short shows it."""
    value = re.sub(r"^--", "", value)  # An option, to whatever reads options.
    argv = PLACES[place](f"{value}Zq9{value}SECRET7")
    shown = " ".join(redacted(argv))
    assert "SECRET7" not in shown
    assert "Zq9" not in shown


@settings(max_examples=share_of(300), deadline=None, derandomize=True)
@given(st.lists(st.text(st.sampled_from("ab-=:;,&|()<>'\"\\$`{}[] \n#@/?"), max_size=24), max_size=4))
def test_any_words_are_taken(argv: list[str]) -> None:
    assert len(redacted(["sh", "-c", *argv])) == len(argv) + 2


def test_a_long_text_takes_no_long_time() -> None:
    for part in ("a", "'", '"', "a=", "-", "://a:", "token ", '{"token":', ";a=", "\\", "(", "a:b@", "'a \"b "):
        began = time.process_time()
        redacted(["sh", "-c", part * (8192 // len(part))])
        assert time.process_time() - began < 2, part


def test_a_script_within_too_many_others_is_hidden_as_a_whole() -> None:
    """Each is a level, however it is quoted: none is read without end."""
    argv = ["t.py", "plain"]
    for _ in range(NESTED_MAX):
        argv = ["sh", "-c", shlex.join(argv)]
    assert "plain" in " ".join(redacted(argv))
    for _ in range(2):
        argv = ["sh", "-c", shlex.join(argv)]
    shown = " ".join(redacted(argv))
    assert "plain" not in shown
    assert REDACTED in shown


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


def test_a_command_that_is_cut_shows_what_its_paths_name() -> None:
    long = ["/" + "opt/" * 20 + "bin/python3", "/" + "home/" * 20 + "costgov", "top"]
    assert command_within(80, long) == "python3 costgov top"
    assert command_within(80, ["/bin/sh", "t.sh"]) == "/bin/sh t.sh"
    assert command_within(5, ["train.py"]) == "train"
