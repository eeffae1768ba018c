"""Tasks that are functions of one job."""

import pickle

from tasks.job import Artifact, Checkpoint, Job, Metrics, Progress, per_job


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


def _jobs(tmp_path, *params):
    return [Job(each, {}, tmp_path) for each in params]


def test_events_name_their_job_and_progress_is_that_of_all_jobs(tmp_path):
    assert list(show(_jobs(tmp_path, 7, 8))) == [
        Metrics(3, {"params": 7}, job=0),
        Checkpoint(3, b"state", job=0),
        Artifact("picture.png", b"pixels", job=0),
        Progress(0.25),
        Metrics(3, {"params": 8}, job=1),
        Checkpoint(3, b"state", job=1),
        Artifact("picture.png", b"pixels", job=1),
        Progress(0.75),
    ]


def test_a_job_may_have_no_events(tmp_path):
    assert list(write(_jobs(tmp_path, "text"))) == []
    assert (tmp_path / "file").read_text() == "text"


def test_other_processes_find_the_task_by_its_name():
    assert pickle.loads(pickle.dumps(show)) is show
