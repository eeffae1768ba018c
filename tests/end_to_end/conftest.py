import pytest
from checkouts import Checkout, cleaned


@pytest.fixture(scope="session")
def finished_smoke(tmp_path_factory):
    """A checkout in which `dvc repro` has run the smoke profile. Not to be changed."""
    checkout = Checkout.of_working_tree(tmp_path_factory.mktemp("smoke") / "clone")
    with cleaned(checkout):
        checkout.compose("profile=smoke", "executor=local")
        checkout.repro()
        yield checkout


@pytest.fixture
def smoke(finished_smoke, tmp_path):
    """A copy of that checkout, to go on with."""
    checkout = finished_smoke.copy(tmp_path / "clone")
    with cleaned(checkout):
        yield checkout
