"""Which token range is a slice? Two numbers define it, the same for everyone who copies."""

from limosa.core.model.keys import TokenRange


def slice_of(token_range: TokenRange, number: int, count: int) -> TokenRange:
    """Part `number` of a range that is cut into `count` equal parts."""
    span = (token_range.end - token_range.start) // count
    start = token_range.start + number * span
    return TokenRange(start, token_range.end if number == count - 1 else start + span)
