"""Masks passwords, keys and tokens, by name and by format, as `***`. Text may come from evidence, so every pattern runs
in time linear in its length.
"""

import re
from typing import Any

MASK = "***"

_WORDS = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++")
_ALWAYS = re.compile(r"password|passwd|passphrase|pwd|jwt|secret|credentials?|apikey|authorization")
_BEFORE_KEY = re.compile(
    r"access|account|admin|api|app|auth|client|consumer|deploy|encryption|license|master|openai|private|service|"
    r"session|shared|signing|ssh|storage|subscription"
)
_PASSWORD = re.compile(r"(?:password|passwd|passphrase|apikey)$", re.IGNORECASE)
_JOINED = re.compile(r"[_.-]|^[a-z]+[A-Z]")  # `refreshToken`, which is no word; `InvalidToken` is an exception.
_BEFORE_PASS = re.compile(
    r"admin|db|database|docker|elastic|ftp|git|grafana|http|kafka|key|ldap|login|mail|mongo|mqtt|mysql|pg|postgres|proxy|"
    r"rabbitmq|redis|registry|root|smtp|ssh|sudo|user|vpn|wifi"
)
_NO_PASSWORD = re.compile(
    r"""["']?(?:[+-]?\d[\d.,/%+-]{0,40}[a-z]{0,2}|true|false|none|null|off|yes|all|any|passed|failed|forward|backward|fwd|bwd|
    train|eval)(?![^\s"'&,;{}()\[\]])""",
    re.IGNORECASE | re.VERBOSE,
)  # Values of `pass=` that count something, switch something or name a pass.
_MODEL_TOKEN = re.compile(r"bos|cls|end|eos|first|image|last|mask|new|next|pad|per|sep|special|start|unk")
"""`pad_token` is a tokenizer's key."""
_HARMLESS_END = re.compile(r"dir|file|folder|id|length|names?|path|type")  # `token_file` is the path of a secret.

_FORMS = re.compile(
    r"""(?<![\w-])(?:
      sk-[\w-]{16,} | hf_\w{16,} | gh[pousr]_\w{20,} | github_pat_\w{20,} | glpat-[\w-]{16,} | xox[abeoprs]-[\w-]{10,}
    | (?:AKIA|ASIA)[A-Z0-9]{16} | AIza[\w-]{30,} | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,} | wandb_v\d_\w{20,}
    | nvapi-[\w-]{20,} | npm_\w{20,} | pypi-AgE[\w-]{20,} | [rs]k_(?:live|test)_\w{16,}
    )""",
    re.VERBOSE,
)  # OpenAI and Anthropic, Hugging Face, GitHub, GitLab, Slack, AWS, Google, JSON web tokens, W&B, NVIDIA, npm, PyPI...
_PEM = re.compile(r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----).*", re.DOTALL)
_URL = re.compile(r"(?<=://)(?:([^\s/:@\"'<>]*+):[^\s/\"'<>]+@|[^\s/:@\"'<>]{20,}+@)")
_HEADER = re.compile(
    r"""\b( (?:bearer|basic|authorization["']?\s{0,4}[:=]\s{0,4}["']?[a-z]{1,20})\s{1,4}(?=[\w.~+/=-]{12})
    | (?<=[?&])(?:[\w-]{0,20}-)?sig(?:nature)?= )[^\s"'<>&;]+""",
    re.IGNORECASE | re.VERBOSE,
)  # The last ones are parameters of pre-signed storage URLs.
_COOKIE = re.compile(r"""\b(cookie["']?:\s{0,4}["']?)[^"'\n]+""", re.IGNORECASE)  # All its pairs, behind blanks.
_RANDOM = re.compile(r"""["']?(?=[\w.~+/=%-]{0,40}\d)(?=[\w.~+/=%-]{0,40}[A-Za-z])[\w.~+/=%-]{20}""")
_LOGIN = re.compile(
    r"""(?<![\w-])((?:-[sSkLfi]{0,6}u|--(?:proxy-)?user)(?:=|["']?,?\s{1,4})(["'])?([\w.@+-]{1,64}):)
    (?!\d+(?:\W|$) | \3\b | [/.~])(?<!\.py:)(?(2)[^"'\n]+|[^\s"',]+)""",
    re.VERBOSE,
)  # Not a user and a group (`docker run -u 1000:1000`), nor a host and a path (`rsync -u host:/data`).
_NAME = re.compile(
    r"""(?<![\w.-])(?:
      (-{0,2}[A-Za-z_][\w.-]*+) (["']?\s{0,4}[=:]\s{0,4})
    | (--[A-Za-z][\w.-]*+) (["']?(?:,\s{0,4}|\s{1,4})) )""",
    re.VERBOSE,
)
_VALUE = re.compile(r"""(?!(?:None|null)\b|\*\*\*)(?:"[^"]*"|'[^']*'|[^\s"'&,;{}()\[\]]+)""")
_OVERRIDE = re.compile(r"[+~]*([\w.@/-]+)=(.+)", re.DOTALL)


def is_secret(name: str, value: object = "") -> bool:
    """Return whether the value of a name (`WANDB_API_KEY`, `model.arguments.dbPassword`) is a secret.

    The begin of the value decides for names that are not always secret: `pass`, `CUDA_PASS`, `sig`.
    """
    if name.lstrip("-+").startswith("launcher.secrets."):  # Names of Kubernetes secrets.
        return False
    words = [word.lower() for word in _WORDS.findall(name.rpartition(".")[2])]
    if not words or _HARMLESS_END.fullmatch(words[-1]):
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in ("token", "auth", "pat"):
        return not _MODEL_TOKEN.fullmatch(before)
    if words[-1] == "pass":
        if _BEFORE_PASS.fullmatch(before):
            return True
        is_pass = before and not name.isupper()  # `fusion_pass`
        return value != "" and not is_pass and _NO_PASSWORD.match(str(value)) is None
    if words[-1] in ("sig", "signature"):
        return bool(_RANDOM.match(str(value)))
    if words[-1] == "key" and (_BEFORE_KEY.fullmatch(before) or (before and name.isupper())):
        return True
    return any(map(_ALWAYS.fullmatch, words)) or words[-1].endswith(("password", "passwd"))


def masked(value: Any, name: str = "") -> Any:
    """Return JSON values with secrets masked and the others unchanged."""
    if isinstance(value, dict):
        return value if name == "secrets" else {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_masked_item(item, value[n - 1] if n else None, name) for n, item in enumerate(value))
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "" and is_secret(name, value):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """Return a text with passwords in URLs, values of secret names (`api_key=...`) and token-like strings masked."""
    text = _FORMS.sub(MASK, text)
    if "://" in text:
        text = _URL.sub(lambda match: f"{match[1]}:{MASK}@" if match[1] is not None else f"{MASK}@", text)
    if "PRIVATE KEY" in text:
        text = _PEM.sub(rf"\1 {MASK}", text)
    text = _COOKIE.sub(rf"\1{MASK}", _HEADER.sub(rf"\1{MASK}", text))
    text = _LOGIN.sub(rf"\1{MASK}", text)
    pieces, at = [], 0
    for match in _NAME.finditer(text):
        name, between = match[1] or match[3], match[2] or match[4]
        prose = ":" in between and not _JOINED.search(name) and not _PASSWORD.search(name)  # `unexpected token: }`
        prose = prose and (between[0] == ":" or name.lower().endswith("token"))  # `"secret": "..."` is data.
        prose = prose and not _RANDOM.match(text, match.end())
        if match.start() < at or prose or not is_secret(name, text[match.end() : match.end() + 60]):
            continue
        if value := _VALUE.match(text, match.end()):
            pieces += [text[at : value.start()], MASK]
            at = value.end()
    return "".join([*pieces, text[at:]]) if pieces else text


def _masked_item(item: Any, before: Any, name: str) -> Any:
    """Mask an item of a list: an override, an argument after `--password`, or a value."""
    if isinstance(item, str):
        override = _OVERRIDE.fullmatch(item)
        if override is not None and override[1].startswith("launcher.secrets"):
            return item
        if override is not None and is_secret(override[1], override[2]):
            return f"{item[: override.start(2)]}{MASK}"
        if isinstance(before, str) and before.startswith("-") and "=" not in before:
            if is_secret(before, item):
                return MASK
            item = _LOGIN.sub(rf"\1{MASK}", f"{before} {item}")[len(before) + 1 :]
    return masked(item, name)
