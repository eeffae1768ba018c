import os
from pathlib import Path

# Ray's workers and commands run as subprocesses find the toys of tests/support as this process does.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
