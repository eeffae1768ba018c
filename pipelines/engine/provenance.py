"""Which code computes."""

import shutil
import subprocess


def git_commit() -> str:
    """The commit that is checked out; `unknown` where there is no git or no repository."""
    if shutil.which("git") is None:  # as in the image
        return "unknown"
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
