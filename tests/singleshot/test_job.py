"""Tasks that are functions of one job."""

import pickle

from singleshot.job import Artifact, Checkpoint, Job, Metrics, Progress, per_job


@per_job
def show(job):
    """Each kind of event."""
    yield Metrics(3, {"params": job.params})
    yield Checkpoint(3, b"state")
    yield Artifact("picture.png", b"pixels")
    yield Progress(0.5)


@per_job
def write(job):
    """Without events."""
    (job.output / "file").write_text(job.params)


def test_events_name_their_job_and_progress_is_that_of_all_jobs(tmp_path):
    expected = [
        event
        for job in (0, 1)
        for event in (
            Metrics(3, {"params": 7 + job}, job=job),
            Checkpoint(3, b"state", job=job),
            Artifact("picture.png", b"pixels", job=job),
            Progress(0.25 + 0.5 * job),
        )
    ]
    assert list(show([Job(7, {}, tmp_path), Job(8, {}, tmp_path)])) == expected


def test_a_job_may_have_no_events(tmp_path):
    assert list(write([Job("text", {}, tmp_path)])) == []
    assert (tmp_path / "file").read_text() == "text"


def test_other_processes_find_the_task_by_its_name():
    assert pickle.loads(pickle.dumps(show)) is show
