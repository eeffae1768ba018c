"""Agents that play live: a WebSocket sends the positions of their bodies, and receives pushes."""

import asyncio
import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import HTTPException, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from singleshot.errors import UserError, explained
from singleshot.serving.models import Policy

if TYPE_CHECKING:
    from singleshot.rl.evaluation.live import LiveEpisode

    Playing = tuple[Policy, LiveEpisode, np.random.Generator]

FRAMES_PER_SECOND = 30
MAX_AGENTS = 4
"""Largest number of agents in one connection."""
MAX_WATCHERS = 4
"""Largest number of watchers of one process. A pair of Hoppers takes a tenth of a core."""
PAUSE_SECONDS = 2.0
"""Pause between the end of all agents' episodes and new ones."""
WATCHED_SECONDS = 600
"""Time after which a connection is closed, as its page may be forgotten."""
POLICY_VIOLATION, TRY_AGAIN = 1008, 1013
"""Codes of RFC 6455 for the end of a connection."""


class Push(BaseModel):
    """A watcher's message: a force on the torso of every agent, forwards if it is positive."""

    model_config = ConfigDict(extra="forbid")
    push: Annotated[float, Field(ge=-2000, le=2000)]
    """Force in newtons, which acts for a tenth of a second."""


class Watching:
    """The watchers of a process."""

    def __init__(self) -> None:
        self._watchers, self._simulator = 0, ThreadPoolExecutor(1)

    async def start(self, policy: Policy) -> dict[str, Any]:
        """A policy's body as an episode begins, like an agent in :func:`__call__`'s messages.

        Raises:
            HTTPException: there is nothing to watch, as the environment has no body, or there is none.
        """
        return await self._simulated(_start, policy)

    async def __call__(self, socket: WebSocket, policies: Sequence[Policy]) -> None:
        """Play policies of one environment side by side, from the same states, until the watcher leaves."""
        if self._watchers >= MAX_WATCHERS:
            await socket.accept()
            await socket.close(TRY_AGAIN, f"{MAX_WATCHERS} others are watching; try again")
            return
        self._watchers += 1
        pushes: deque[float] = deque(maxlen=10)
        try:
            await self.start(policies[0])
            await socket.accept()
            shown = asyncio.create_task(self._show(socket, policies, pushes))
            try:
                async with asyncio.timeout(WATCHED_SECONDS):
                    reason = await _hear(socket, pushes)
            except TimeoutError:
                reason = "watched for ten minutes; start again"
            finally:
                shown.cancel()
        finally:
            self._watchers -= 1
        if reason:
            await socket.close(POLICY_VIOLATION, reason)

    async def _show(self, socket: WebSocket, policies: Sequence[Policy], pushes: deque[float]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # `_hear` may have closed the socket
            for seed in itertools.count():
                with contextlib.ExitStack() as ends:
                    playing = []
                    for policy in policies:
                        episode = await self._simulated(_episode, policy, seed)
                        ends.callback(episode.close)
                        playing.append((policy, episode, np.random.default_rng(seed)))
                    await self._play(socket, playing, pushes)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _play(self, socket: WebSocket, playing: "Sequence[Playing]", pushes: deque[float]) -> None:
        episodes = [episode for _, episode, _ in playing]
        steps = max(1, round(1 / FRAMES_PER_SECOND / episodes[0].step_seconds))
        due = time.monotonic()
        while not all(episode.ended for episode in episodes):
            while pushes:
                newton = pushes.popleft()
                for episode in episodes:
                    episode.push(newton)
            await socket.send_json({"agents": await self._simulated(_step, playing, steps)})
            due = max(due + steps * episodes[0].step_seconds, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _simulated(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._simulator, function, *arguments)


async def _hear(socket: WebSocket, pushes: deque[float]) -> str:
    """Receive pushes until the watcher leaves or sends something else; returns what was wrong, or ""."""
    while True:
        try:
            pushes.append(Push.model_validate_json(await socket.receive_text()).push)
        except WebSocketDisconnect:
            return ""
        except (ValidationError, KeyError):  # KeyError: the message is bytes
            return 'send {"push": NEWTON}, from -2000 to 2000'


def _episode(policy: Policy, seed: int) -> "LiveEpisode":
    # Imported here, in a thread, as it takes seconds: it imports Gymnasium, MuJoCo and PyTorch.
    from singleshot.rl.environments import Environment, environment_in_file
    from singleshot.rl.evaluation.live import LiveEpisode

    environment = environment_in_file(policy.card.details.get("environment_spec"))
    return LiveEpisode(environment or Environment(None), seed)


@functools.cache
def _start(policy: Policy) -> dict[str, Any]:
    try:
        with contextlib.closing(_episode(policy, 0)) as episode:
            told = _told("", episode)
            with explained(f"{policy.name}: can't act in its environment", "export it again"):
                episode.step(policy(episode.state, np.random.default_rng(0)))
            return told
    except (UserError, ValidationError) as error:
        raise HTTPException(404, str(error)) from None


def _step(playing: "Sequence[Playing]", steps: int) -> list[dict[str, Any]]:
    for policy, episode, generator in playing:
        for _ in range(steps):
            episode.step(policy(episode.state, generator))
    return [_told(policy.name, episode) for policy, episode, _ in playing]


def _told(policy: str, episode: "LiveEpisode") -> dict[str, Any]:
    # HalfCheetah's episodes go on after a fall, and it may slide on its back.
    posture = "fell" if episode.fell else "on its back" if episode.upright < 0 else "on its feet"
    return {
        "policy": policy,
        "capsules": episode.capsules().round(3).tolist(),
        "position": round(episode.position, 3),
        "speed": round(episode.speed, 2),
        "return": round(episode.total, 1),
        "seconds": round(episode.seconds, 2),
        "posture": posture,
        "ended": episode.ended,
    }
