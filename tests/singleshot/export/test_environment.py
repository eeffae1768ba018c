from singleshot.export import environment


def test_an_environment_belongs_to_its_lock_file_and_is_none_until_it_is_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "LOCK_FILE", tmp_path / "tensorflow.lock")
    environment.LOCK_FILE.write_text("# nothing\n")
    built = environment.directory()
    (built / "bin").mkdir(parents=True)
    assert environment.tensorflow_python() is None
    (built / "complete").touch()
    assert environment.tensorflow_python() == built / "bin" / "python"
    environment.LOCK_FILE.write_text("# something else\n")
    assert environment.tensorflow_python() is None
