import pytest
import torch

from konsil.randomness import derive, generator, global_stream

NAMES = (0, "north", 3, "order")


def draw(*names: object) -> list[float]:
    return torch.rand(4, generator=generator(*names)).tolist()


def test_a_stream_does_not_depend_on_what_ran_before():
    first = draw(*NAMES)
    draw(1, "south", 9, "noise")
    torch.rand(7)
    torch.manual_seed(123)
    assert draw(*NAMES) == first


@pytest.mark.parametrize("place", range(len(NAMES)))
def test_every_name_makes_another_stream(place: int):
    other = list(NAMES)
    other[place] = f"{other[place]}x"
    assert draw(*other) != draw(*NAMES)


def test_names_count_in_their_order_and_do_not_run_together():
    assert derive("a", "b") != derive("b", "a")
    assert derive("ab", "c") != derive("a", "bc")
    assert derive("a") != derive("a", "")
    assert 0 <= derive(*NAMES) < 2**63


def test_streams_are_the_same_in_every_version():
    """A resumed run must draw what it drew before: this number may never change."""
    assert derive(0, "north", 1, "order", 0) == 4221188962535745245


def test_a_global_stream_puts_the_generator_back():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with global_stream(*NAMES):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with global_stream(*NAMES):
        assert torch.equal(torch.rand(3), inside)


def test_a_global_stream_puts_the_generator_back_after_an_error():
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), global_stream("x"):
        _ = torch.rand(1) / (1 // 0)
    assert torch.equal(torch.get_rng_state(), state)
