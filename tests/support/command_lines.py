"""Command lines that are run in this process."""

import re
import sys

import pytest


def runner(main, program, monkeypatch, capsys):
    """A function from arguments to a command's status, its output and what it said of an error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run_command(*arguments):
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        if isinstance(ended.value.code, str):  # what Python prints when it ends with a text
            return 1, out, f"{err}{ended.value.code}\n"
        return ended.value.code or 0, out, err

    return run_command


def assert_one_line(result, *words):
    status, _, error = result
    assert status == 1
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    for word in words:
        assert str(word) in error


def assert_help_tells_all(run, commands):
    """Every command, and each of its options, in words."""
    _, listed, _ = run("--help")
    for name, command in commands.items():
        assert f" {name} " in listed
        status, out, _ = run(name, "--help")
        assert status == 0
        assert "<bool>" not in out  # as if a flag took a value
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or parameter.opts[0] in out
            assert parameter.name == "help" or parameter.help
        assert command.help.partition(".")[0][:40] in out
