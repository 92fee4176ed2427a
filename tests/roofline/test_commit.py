"""The commit and the files that a run names: dirty where they differ, and why it is unknown."""

import shutil
import subprocess

import pytest

from results.references import hash_of_commit
from roofline.host.checkout import commit_of, why_unknown
from roofline.store.source_files import hash_of_files


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


def test_the_environment_wins_over_a_git_that_may_be_stale(checkout, monkeypatch):
    (checkout / "kernels" / "configs" / "sm90.json").write_text("two")
    monkeypatch.setenv("ROOFLINE_COMMIT", "abc")
    assert commit_of(checkout) == "abc"


def test_files_have_the_hash_of_their_commit_with_git_or_without(checkout, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy") / "of"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    assert hash_of_files(copy) == hash_of_files(checkout) == hash_of_commit(checkout, "HEAD")


@pytest.mark.parametrize(("name", "text"), [("kernels/configs/sm90.json", "two"), ("kernels/added.py", "")])
def test_a_file_that_differs_or_is_not_tracked_changes_the_hash(checkout, name, text):
    (checkout / name).write_text(text)
    assert hash_of_files(checkout) != hash_of_commit(checkout, "HEAD")


def test_what_nothing_measured_depends_on_leaves_the_hash(checkout):
    (checkout / "results.json").write_text("{}")
    (checkout / "kernels" / "__pycache__").mkdir()
    (checkout / "kernels" / "__pycache__" / "other.pyc").write_text("")
    assert hash_of_files(checkout) == hash_of_commit(checkout, "HEAD")


def test_a_commit_that_git_does_not_know_is_an_error_with_a_way_out(checkout):
    with pytest.raises(ValueError, match="does not know commit abcdef0: fetch it"):
        hash_of_commit(checkout, "abcdef0")


NO_COMMIT = [  # environment, begun by git init, what the report says
    ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, True, "safe.directory {}, or set ROOFLINE_COMMIT to it."),
    ({"PATH": "/nowhere"}, True, "git could not be run (No such file or directory); set ROOFLINE_COMMIT"),
    ({}, True, "git says 'fatal: "),
    ({"LANG": "de_DE.UTF-8"}, False, "git says 'fatal: not a git repository (or any of the parent directories): .git'"),
]


@pytest.mark.parametrize(("environment", "is_repository", "told"), NO_COMMIT)
def test_an_unknown_commit_says_why_and_the_way_out(tmp_path, monkeypatch, environment, is_repository, told):
    if is_repository:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert commit_of(tmp_path) == "unknown"
    assert told.format(tmp_path) in why_unknown(tmp_path)


def test_a_report_says_why_its_commit_is_unknown(three_shapes):
    run = three_shapes("-k", "m64", path="/nowhere")
    assert run.code == 0
    assert "The commit is unknown: git could not be run" in run.report
