"""Masks passwords, keys and tokens, by name and by format, as `***`."""

from typing import Any

from diagnostics.contract.files import patterns_beside

MASK = "***"

_TEXT = patterns_beside(__file__)
"""Compiled patterns, documented in the table."""


def is_secret(name: str, value: object = "") -> bool:
    """Return whether the value of a name (`WANDB_API_KEY`, `model.arguments.dbPassword`) is a secret.

    The beginning of the value decides for names that are not always secret: `pass`, `CUDA_PASS`, `sig`.
    """
    if name.lstrip("-+").startswith("launcher.secrets."):  # Names of Kubernetes secrets.
        return False
    words = [word.lower() for word in _TEXT["words"].findall(name.rpartition(".")[2])]
    if not words or _TEXT["harmless_end"].fullmatch(words[-1]):
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in ("token", "auth", "pat"):
        return not _TEXT["model_token"].fullmatch(before)
    if words[-1] == "pass":
        if _TEXT["before_pass"].fullmatch(before):
            return True
        is_pass = before and not name.isupper()  # `fusion_pass`
        return value != "" and not is_pass and _TEXT["no_password"].match(str(value)) is None
    if words[-1] in ("sig", "signature"):
        return bool(_TEXT["random"].match(str(value)))
    if words[-1] == "key" and (_TEXT["before_key"].fullmatch(before) or (before and name.isupper())):
        return True
    return any(map(_TEXT["always"].fullmatch, words)) or words[-1].endswith(("password", "passwd"))


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
    if _TEXT["plain"].fullmatch(text):
        return text
    text = _TEXT["forms"].sub(MASK, text)
    if "://" in text:
        text = _TEXT["url"].sub(lambda match: f"{match[1]}:{MASK}@" if match[1] is not None else f"{MASK}@", text)
    if "PRIVATE KEY" in text:
        text = _TEXT["pem"].sub(rf"\1 {MASK}", text)
    text = _TEXT["cookie"].sub(rf"\1{MASK}", _TEXT["header"].sub(rf"\1{MASK}", text))
    text = _TEXT["login"].sub(rf"\1{MASK}", text)
    pieces, at = [], 0
    for match in _TEXT["name"].finditer(text):
        name, between = match[1] or match[3], match[2] or match[4]
        prose = (
            ":" in between and not _TEXT["joined"].search(name) and not _TEXT["password"].search(name)
        )  # `unexpected token: }`
        prose = prose and (between[0] == ":" or name.lower().endswith("token"))  # `"secret": "..."` is data.
        prose = prose and not _TEXT["random"].match(text, match.end())
        if match.start() < at or prose or not is_secret(name, text[match.end() : match.end() + 60]):
            continue
        if value := _TEXT["value"].match(text, match.end()):
            pieces += [text[at : value.start()], MASK]
            at = value.end()
    return "".join([*pieces, text[at:]]) if pieces else text


def _masked_item(item: Any, before: Any, name: str) -> Any:
    """Mask an item of a list: an override, an argument after `--password`, or a value."""
    if isinstance(item, str):
        override = _TEXT["override"].fullmatch(item)
        if override is not None and override[1].startswith("launcher.secrets"):
            return item
        if override is not None and is_secret(override[1], override[2]):
            return f"{item[: override.start(2)]}{MASK}"
        if isinstance(before, str) and before.startswith("-") and "=" not in before:
            if is_secret(before, item):
                return MASK
            item = _TEXT["login"].sub(rf"\1{MASK}", f"{before} {item}")[len(before) + 1 :]
    return masked(item, name)
