"""A record of how a cell came about, for tests that only need one."""

from pipelines.engine.provenance import Machine, Made

MADE = Made(
    1.5, "2026-01-02T03:04:05Z", "c0ffee", Machine("Abacus", "AVX2", 2, 4.0, None), {"python": "3.11.7"}
)
