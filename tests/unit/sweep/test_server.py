"""Handing a sweep to a W&B server: what is refused before it is asked."""

from tests.unit.sweep.files import COMMAND, GRID, needs_sweeps, refused


@needs_sweeps
def test_handing_over_needs_a_key_and_a_tracker(tmp_path, monkeypatch, capsys):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert "--wandb needs a key" in refused(GRID, tmp_path, monkeypatch, capsys, "--wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    untracked = {**GRID, "command": [word for word in COMMAND if word != "tracker=wandb"]}
    assert "add tracker=wandb" in refused(untracked, tmp_path, monkeypatch, capsys, "--wandb")
    assert "cannot be handed to W&B" in refused(GRID, tmp_path, monkeypatch, capsys, "--wandb", "repeats=2")
