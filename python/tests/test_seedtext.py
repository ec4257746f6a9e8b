"""What happens to tests that run the seeds' own code where the texts are missing."""

import pytest
import seedtext


@pytest.fixture
def no_texts(monkeypatch, tmp_path):
    monkeypatch.setenv("ISOPOD_SEEDS", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return monkeypatch


LOOKS = {
    "text": lambda: seedtext.text(0),
    "blocks": lambda: seedtext.blocks(1, "python"),
    "block": lambda: seedtext.block(2, "python", "class"),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_test_without_its_text_is_skipped_and_fails_in_ci(no_texts, look):
    with pytest.raises(pytest.skip.Exception, match="the seeds' texts are not here; set ISOPOD_SEEDS"):
        look()
    no_texts.setenv("CI", "true")
    with pytest.raises(RuntimeError, match="CI runs the seeds' own code, and the seeds' texts are not here"):
        look()


def test_the_texts_are_found_where_they_are_named(no_texts, tmp_path):
    (tmp_path / "002_0123.txt").write_text("```python\nx = 1\n```\n")
    for ci in ("", "true"):
        no_texts.setenv("CI", ci)
        assert seedtext.blocks(2, "python") == ["x = 1\n"] and seedtext.block(2, "python", "x") == "x = 1\n"
