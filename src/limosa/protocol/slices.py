"""Which token range is a slice? Two numbers define it, the same for everyone who copies."""

from limosa.core.model.keys import TokenRange


def slice_of(held: TokenRange, number: int, count: int) -> TokenRange:
    """One of so many equal parts of a range."""
    span = (held.end - held.start) // count
    start = held.start + number * span
    return TokenRange(start, held.end if number == count - 1 else start + span)
