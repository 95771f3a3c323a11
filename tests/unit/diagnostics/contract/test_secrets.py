"""What is a password, key or token is masked, whatever it stands in; what only sounds like one is left alone."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract import secrets
from diagnostics.contract.secrets import MASK, is_secret, masked, masked_text

SECRET_NAMES = [
    "WANDB_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "OPENAI_API_KEY",
    "GITHUB_TOKEN",
    "GITHUB_PAT",
    "PGPASSWORD",
    "DB_PASS",
    "DB_PASSWORD",
    "MYSQL_PWD",
    "AZURE_STORAGE_KEY",
    "NGC_API_KEY",
    "MY_SERVICE_KEY",
    "CLIENT_SECRET",
    "GOOGLE_CREDENTIALS",
    "REGISTRY_AUTH",
    "SLURM_JWT",
    "model.arguments.dbPassword",
    "model.arguments.api_key",
    "GRAFANA_PASS",
    "vpnPass",
    "smtp-pass",
]
HARMLESS_NAMES = [
    "forward_pass",
    "backward-pass",
    "num_pass",
    "passed",
    "bypass",
    "compass",
    "BYPASS",
    "onePass",
    "first_pass",
    "PASS_FAIL",
    "fusion_pass",
    "num_key_value_heads",
    "max_tokens",
    "tokens_per_s",
    "tokenizer",
    "pad_token",
    "eos_token_id",
    "author",
    "key",
    "monkey",
    "keyboard",
    "token_file",
    "WANDB_IDENTITY_TOKEN_FILE",
    "launcher.secrets.WANDB_API_KEY",
    "OMP_NUM_THREADS",
    "NCCL_DEBUG",
    "passes",
    "authority",
    "secretary",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert masked({name: "v4lue"}) == {name: MASK} and masked({"a": [{name: 12345}]}) == {"a": [{name: MASK}]}
    assert "v4lue" not in masked_text(f"run with {name}=v4lue and {name}='v4lue too' or --{name} v4lue")
    assert masked([f"+{name}=v4lue, with a comma"]) == [f"+{name}={MASK}"]


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_names_that_only_sound_like_secrets(name: str) -> None:
    assert not is_secret(name) and masked_text(f"{name}=value --{name} value") == f"{name}=value --{name} value"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:p@ss:w0rd@host/x", "https://me:***@host/x"),
        ("git clone https://abcdefghij0123456789xyz@host", "git clone https://***@host"),
        ("ssh://git@github.com/x http://host:80/a@b", "ssh://git@github.com/x http://host:80/a@b"),
        ("GET /x?api_key=abc&n=1", "GET /x?api_key=***&n=1"),
        ("authorization: Bearer abcdefghijklmnop", "authorization: Bearer ***"),
        ("Authorization: Token abcdefghijklmnop", "Authorization: Token ***"),
        ("'authorization': 'ApiKey abcdefghijklmnop'", "'authorization': ***"),
        ("Cookie: n=1; session=abc\nnext", "Cookie: ***\nnext"),
        ("{'cookie': 'n=1; session=abc', 'n': 3}", "{'cookie': '***', 'n': 3}"),
        ("secretKey: 'a b', refreshToken: abc", "secretKey: ***, refreshToken: ***"),
        ("raise InvalidToken: the text", "raise InvalidToken: the text"),
        ("npm_abcdefghij0123456789 nvapi-abcdefghij0123456789 wandb_v1_abcdefghij0123456789", "*** *** ***"),
        ("sk_live_abcdefghij012345 pypi-AgEIcHlwaS5vcmcCJDAwMDA", "*** ***"),
        ("https://h/c?sv=1&sig=aB%2Fc%3D&n=1", "https://h/c?sv=1&sig=***&n=1"),
        ("s3://b/k?X-Amz-Signature=0a1b2c", "s3://b/k?X-Amz-Signature=***"),
        ("token: abcdefghij0123456789 secret: v4lue", "token: *** secret: v4lue"),
        ("token: abcdefghijklmnopqrstuvwxyz", "token: abcdefghijklmnopqrstuvwxyz"),
        ("the signature=3 of a basic block", "the signature=3 of a basic block"),
        ("sig=aB%2Fc3dEf0123456789%3D expired", "sig=*** expired"),
        ("signature=0a1b2c3d4e5f6071829304a5b6c7d8e9", "signature=***"),
        ("sig=2 sig=(int, str) signature=forward", "sig=2 sig=(int, str) signature=forward"),
        ("curl -u me:hunter2 https://host", "curl -u me:*** https://host"),
        ("curl -sku 'me:hun ter2' x", "curl -sku 'me:***' x"),
        ("curl --user me:hunter2 x --proxy-user=me:x2", "curl --user me:*** x --proxy-user=me:***"),
        ("wget -u --user me x -u 1000:1000", "wget -u --user me x -u 1000:1000"),
        ("docker run -u me:me -v a:b image", "docker run -u me:me -v a:b image"),
        ("python -u train.py:main --user=alice", "python -u train.py:main --user=alice"),
        ("pass=hunter2 PASS='x y' pass = 3", "pass=*** PASS=*** pass = 3"),
        ("test_loss PASS forward pass: 3 ms, pass 2: 4 ms", "test_loss PASS forward pass: 3 ms, pass 2: 4 ms"),
        ("CUDA_PASS=hunter2 MY_OWN_PASS='x y' NUM_PASS=2", "CUDA_PASS=*** MY_OWN_PASS=*** NUM_PASS=2"),
        ("{'secret': 'abc', 'pass': 'x1', 'token': 'the'}", "{'secret': ***, 'pass': ***, 'token': 'the'}"),
        ("pass=forward PASS=true --pass 3 --pass x1", "pass=forward PASS=true --pass 3 --pass ***"),
        ("pass=1 pass=2/10 bypass=on compass=north", "pass=1 pass=2/10 bypass=on compass=north"),
        ("hf_abcdefghijklmnopqrst and sk-abcdefghijklmnopqrst", "*** and ***"),
        ("x -----BEGIN RSA PRIVATE KEY-----\nMII\n", "x -----BEGIN RSA PRIVATE KEY----- ***"),
        ('{"db_password": "a b", "n": 3}', '{"db_password": ***, "n": 3}'),
        ("x://a:b@c/x?token=abc ['--auth-token', 'abc']", "x://a:***@c/x?token=*** ['--auth-token', ***]"),
        ("[--auth-token,abc,--lr,3]", "[--auth-token,***,--lr,3]"),
        ("unexpected token: } in line 3", "unexpected token: } in line 3"),
        ("password: hunter2 and dbPassword: x1", "password: *** and dbPassword: ***"),
        ("secret: it is kept", "secret: it is kept"),
        ("commit 0123456789abcdef0123456789abcdef01234567", "commit 0123456789abcdef0123456789abcdef01234567"),
    ],
)
def test_secrets_within_text(text: str, shown: str) -> None:
    assert masked_text(text) == shown and masked_text(shown) == shown


def test_an_argument_behind_an_option_and_names_of_kubernetes_secrets() -> None:
    assert masked(["x", "--api-key", "abc", "--lr", "3"]) == ["x", "--api-key", MASK, "--lr", "3"]
    assert masked(["-u", "me:hunter2", "--pass", "x", "--pass", "2"]) == [
        "-u",
        f"me:{MASK}",
        "--pass",
        MASK,
        "--pass",
        "2",
    ]
    assert masked({"pass": "hunter2", "CUDA_PASS": "x"}) == {"pass": MASK, "CUDA_PASS": MASK}
    assert masked({"pass": 3, "NUM_PASS": "2", "a": ["pass=2/10"]}) == {"pass": 3, "NUM_PASS": "2", "a": ["pass=2/10"]}
    assert masked({"launcher": {"secrets": {"HF_TOKEN": "hf/token"}}}) == {
        "launcher": {"secrets": {"HF_TOKEN": "hf/token"}}
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    )
)
@settings(max_examples=50)
def test_masking_twice_is_masking_once_and_keeps_the_shape(value: object) -> None:
    once = masked(value)
    assert masked(once) == once and json.dumps(once) and type(once) is type(value)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "://",
        "eyJ-",
        "&sig=",
        "sig=a1",
        "sig=\xe9",
        "pass=1",
        "pass=1/",
        "-u a:",
        "-u a",
        "--user a",
        "-sSkLfiu ",
        "pass=",
        "cookie: ",
        "authorization:a ",
        "token: a1",
        "?a-",
        "a=:",
        "a ",
        "--a",
        "bearer ",
        "a='",
        'a="',
        "-",
        "sk-",
        "password \n",
        "aA",
        "k: ",
        "@",
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    """Masking it takes a fraction of a second; backtracking to each earlier place would take minutes."""
    masked_text(piece * 100_000)


@given(st.from_regex(secrets._TEXT["plain"], fullmatch=True))
def test_what_is_taken_to_be_plain_holds_no_secret(text: str) -> None:
    """A separator that each pattern allows beside a value makes it no longer plain, and still nothing is masked."""
    assert masked_text(f"{text} ;") == f"{text} ;"
