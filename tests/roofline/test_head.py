"""The commit that a run names: dirty where files differ from it."""

import subprocess

import pytest

from roofline.measure.metadata import commit_of


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments: str) -> None:
        about = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", *about, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "kernels" / "configs").mkdir(parents=True)
    for name in ("kernels/configs/sm90.json", "kernels/configs/other.py"):
        (tmp_path / name).write_text("one")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    return tmp_path


def test_a_changed_file_is_dirty(checkout):
    clean = commit_of(checkout)
    assert len(clean) >= 7
    assert "dirty" not in clean
    (checkout / "new").write_text("not tracked")
    assert commit_of(checkout) == clean
    (checkout / "kernels" / "configs" / "sm90.json").write_text("two")
    assert commit_of(checkout) == f"{clean}+dirty"


def test_without_a_checkout_the_environment_says_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("ROOFLINE_COMMIT", "abc")
    assert commit_of(tmp_path) == "abc"
    monkeypatch.delenv("ROOFLINE_COMMIT")
    assert commit_of(tmp_path) == "unknown"
