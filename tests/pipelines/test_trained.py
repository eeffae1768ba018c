"""Names of trained styles, as a user types them."""

from pathlib import Path

import pytest

from pipelines.cli.trained import style_model
from singleshot.errors import UserError


def test_a_style_is_known_by_its_name_file_and_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("models/styles/ink", "models/styles/waves", "styles/ink"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").touch()
    for given, directory in {
        "waves": "models/styles/waves",
        "ink": "styles/ink",  # the user's own comes first
        "models/styles/ink": "models/styles/ink",
        "elsewhere/model.safetensors": "elsewhere",
    }.items():
        assert style_model(given) == Path(directory, "model.safetensors")
    with pytest.raises(UserError, match=r"'wafes'.*did you mean waves"):
        style_model("wafes")
