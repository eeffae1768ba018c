import pytest

from singleshot.export.timing import TURN_S, Samples, Timing, take_turns, undisturbed
from singleshot.io.own_process import ProcessFailed


def turn(*wall_ms, cores=1.0, peak=None):
    wall = [ms / 1e3 for ms in wall_ms]
    return Samples(wall, [cores * s for s in wall], peak)


class Contender:
    """Takes `call_s` a call; `shares` are the cores that it gets in its turns, 1 after these."""

    def __init__(self, name, log, call_s, shares=(), fails_at=None):
        self.name, self.log, self.call_s, self.fails_at = name, log, call_s, fails_at
        self.shares = list(shares)
        self.turns = 0

    def __call__(self, calls):
        self.turns += 1
        if self.turns == self.fails_at:
            raise ProcessFailed("killed by SIGSEGV")
        self.log.append((self.name, calls))
        share = self.shares.pop(0) if self.shares else 1.0
        return Samples([self.call_s / share] * calls, [self.call_s] * calls, self.turns)


def test_percentiles_by_hand():
    # Sorted: 1 2 3 4 5; p50 is the third, p90 0.6 of the way from the fourth to the fifth, p99 0.96.
    timing = Timing.of([turn(5, 1, 3, peak=10e6), turn(2, 4, peak=30e6)])
    assert (timing.p50_ms, timing.p90_ms, timing.p99_ms) == pytest.approx((3, 4.6, 4.96))
    assert timing.cpu_p50_ms == pytest.approx(3)
    assert (timing.calls, timing.disturbed_turns, timing.peak_memory_mb) == (5, 0, 30)


def test_turns_with_less_of_the_processor_than_a_runtimes_usual_are_left_out():
    turns = [turn(1), turn(1), turn(9, cores=0.5), turn(1, cores=0.95), turn(9, cores=0.79)]
    assert undisturbed(turns) == [turns[0], turns[1], turns[3]]
    assert Timing.of(turns).disturbed_turns == 2
    assert Timing.of(turns).p99_ms == pytest.approx(1)
    assert Timing.of(turns).peak_memory_mb is None
    two_threads = [turn(1, cores=1.7), turn(1, cores=1.8), turn(1, cores=1.75), turn(1, cores=1.0)]
    assert undisturbed(two_threads) == two_threads[:3]
    waits_by_nature = [turn(1, cores=0.5)] * 3
    assert undisturbed(waits_by_nature) == waits_by_nature


def test_runtimes_take_turns_of_about_equal_length():
    log = []
    contenders = {
        name: Contender(name, log, call_s) for name, call_s in [("a", 0.001), ("b", 0.0001), ("c", 0.001)]
    }
    outcomes = take_turns(contenders, seconds=10 * TURN_S)
    names = [name for name, _ in log]
    assert names == ["a"] * 3 + ["b"] * 3 + ["c"] * 3 + ["a", "b", "c"] * 10
    assert dict(log[9:]) == {"a": 10, "b": 100, "c": 10}
    assert outcomes["b"].calls == 1000
    assert outcomes["b"].p50_ms == pytest.approx(0.1)


def test_a_slow_network_is_not_called_more_often_than_need_be():
    log = []
    outcomes = take_turns({"slow": Contender("slow", log, 7.0)}, seconds=0.3)
    assert log == [("slow", 1)]
    assert outcomes["slow"].calls == 1


def test_a_hiccup_in_the_first_call_makes_no_slow_network():
    class Cold(Contender):
        def __call__(self, calls):
            samples = super().__call__(calls)
            return Samples([0.5], [0.5], None) if self.turns == 1 else samples

    log = []
    take_turns({"cold": Cold("cold", log, 0.001)}, seconds=2 * TURN_S)
    assert log[-1] == ("cold", 10)


def test_disturbed_turns_are_repeated_up_to_the_wanted_number():
    log = []
    warm_up, turns = [1, 1, 1], [1, 0.4, 1, 0.3, 1]
    contenders = {"a": Contender("a", log, 0.001), "b": Contender("b", log, 0.001, warm_up + turns)}
    outcomes = take_turns(contenders, seconds=5 * TURN_S)
    assert [name for name, _ in log][6:] == ["a", "b"] * 5 + ["b", "b"]
    assert outcomes["b"].disturbed_turns == 2
    assert outcomes["b"].calls == outcomes["a"].calls == 50
    assert outcomes["b"].p99_ms == pytest.approx(1)
    log.clear()
    take_turns({"a": Contender("a", log, 0.001, [1, 1, 1, *[1, 0.2, 0.3, 0.2] * 100])}, seconds=20 * TURN_S)
    assert len(log) == 3 + 40  # repeating has an end


@pytest.mark.parametrize("fails_at", [1, 6])
def test_one_that_fails_leaves_the_others_alone(fails_at):
    log = []
    contenders = {
        "a": Contender("a", log, 0.001),
        "b": Contender("b", log, 0.001, fails_at=fails_at),
        "c": Contender("c", log, 0.001),
    }
    outcomes = take_turns(contenders, seconds=4 * TURN_S)
    assert list(outcomes) == ["a", "b", "c"]
    assert str(outcomes["b"]) == "killed by SIGSEGV"
    assert outcomes["a"].calls == outcomes["c"].calls == 40
