"""What is said with a message arrives as it was said."""

from hypothesis import given
from hypothesis import strategies as st

from fedsyn_flwr.messages.instruction import Instruction

ROUND = st.integers(0, 10**6)


@given(st.builds(Instruction, st.text(), ROUND, st.text(), *[ROUND] * 5))
def test_it_is_read_as_it_was_written(said: Instruction) -> None:
    assert Instruction.read(said.config()) == said
    assert all(isinstance(value, str | int) for value in said.config().values())


def test_clients_asked_together_share_the_occasion() -> None:
    first = Instruction("run", 3, "train", partition=0, last=2)
    assert first.occasion == Instruction("run", 3, "train", partition=5).occasion
    assert first.occasion != Instruction("run", 3, "synthesis", partition=0).occasion
