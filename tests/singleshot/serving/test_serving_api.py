"""The API against its own description, by schemathesis: requests that fit it, and requests that don't."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving_clients import photo, serving_config
from small_graphs import write_all

from singleshot.serving.app import build_app
from singleshot.serving.models import find_models

pytestmark = pytest.mark.slow
load_all_checks()
for file_format in ("PNG", "JPEG", "WEBP"):
    content = photo(file_format=file_format)
    pictures = st.just(content) | st.binary() | st.integers(0, len(content)).map(lambda n, c=content: c[:n])
    schemathesis.openapi.media_type(f"image/{file_format.lower()}", pictures)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_all_answers_are_as_described(tmp_path, mode):
    """What a description can't say may be refused: the length of a state, which depends on the policy."""
    write_all(tmp_path)
    api = schemathesis.openapi.from_asgi(
        "/openapi.json", build_app(find_models(tmp_path), serving_config(names=("testserver",)))
    )
    for operation in (each.ok() for each in api.get_all_operations()):
        if mode is GenerationMode.NEGATIVE and operation.method == "get":
            continue  # nothing in it could be wrong

        @given(operation.as_strategy(generation_mode=mode))
        @settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def ask(case):
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        ask()
