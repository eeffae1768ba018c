"""Tasks small enough to reason about, for tests of the machinery."""
