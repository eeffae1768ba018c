"""Turns and ratios, on clocks made by hand."""

from benchmarks.paired import Seconds, Spread, take_turns


class HandMadeClock:
    """A clock that only the variants move on."""

    def __init__(self):
        self.now, self.log = Seconds(100.0, 10.0), []

    def __call__(self):
        return self.now

    def variant(self, name, costs):
        """Takes these (wall, CPU) seconds in its first call, its second, …"""
        remaining = iter(costs)

        def run():
            self.log.append(name)
            wall, cpu = next(remaining)
            self.now = Seconds(self.now.wall + wall, self.now.cpu + cpu)

        return run


def test_variants_alternate_and_the_first_round_does_not_count():
    clock = HandMadeClock()
    variants = {
        "a": clock.variant("a", [(50, 50), (2, 2), (4, 4), (6, 6)]),
        "b": clock.variant("b", [(90, 90), (1, 1), (1, 1), (2, 2)]),
    }
    compared = take_turns(variants, 3, clock=clock)
    assert clock.log == ["a", "b"] * 4
    assert compared.seconds("a") == Seconds(4, 4)
    assert compared.speedup("b", "a") == Spread(3, 2, 4)  # 2/1, 4/1, 6/2
    assert compared.speedup("a", "a") == Spread(1, 1, 1)
    assert compared.disturbed == 0


def test_a_disturbed_round_is_made_again_by_all():
    clock = HandMadeClock()
    variants = {
        "a": clock.variant("a", [(1, 1)] * 4),
        "b": clock.variant("b", [(1, 1), (2, 2), (9, 2), (2, 2)]),
    }
    compared = take_turns(variants, 2, busy=0.9, clock=clock)
    assert clock.log == ["a", "b"] * 4
    assert [each["b"].wall for each in compared.rounds] == [2, 2]
    assert compared.disturbed == 0


def test_after_so_many_tries_the_least_disturbed_rounds_count():
    clock = HandMadeClock()
    variants = {"a": clock.variant("a", [(1, 1), (10, 2), (10, 8), (10, 10), (10, 5)])}
    compared = take_turns(variants, 2, busy=0.9, tries=2, clock=clock)
    assert [each["a"].cpu for each in compared.rounds] == [10, 8]
    assert compared.disturbed == 1


def test_spreads_and_ratios():
    for values, expected in (([3, 1, 2], (2, 1, 3)), ([4, 1], (2.5, 1, 4))):
        spread = Spread.of(values)
        assert (spread.median, spread.low, spread.high) == expected
    clock = HandMadeClock()
    variants = {"a": clock.variant("a", [(8, 2)] * 2), "b": clock.variant("b", [(2, 1)] * 2)}
    compared = take_turns(variants, 1, busy=0, clock=clock)
    assert (compared.speedup("b", "a").median, compared.speedup("b", "a", of="cpu").median) == (4, 2)
