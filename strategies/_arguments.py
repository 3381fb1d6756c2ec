"""Checks of strategies' arguments and recipes' fields, made when the first value is drawn or built."""

from collections.abc import Collection, Sequence


def check_interval(
    function: str, low_name: str, low: int, high_name: str, high: int, *, at_least: int = 0, at_most: int | None = None
) -> None:
    """Refuse bounds that are not integers, not in order, or out of range.

    Raises:
        TypeError: If a bound is not an integer.
        ValueError: Unless `at_least <= low <= high <= at_most`.
    """
    for name, value in ((low_name, low), (high_name, high)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{function}: {name}={value!r}, but it must be an integer. Use int({name}).")
    if not at_least <= low <= high or (at_most is not None and high > at_most):
        ceiling = "" if at_most is None else f" <= {at_most}"
        raise ValueError(
            f"{function}: {low_name}={low}, {high_name}={high}, but they must satisfy "
            f"{at_least} <= {low_name} <= {high_name}{ceiling}. Swap or move them."
        )


def one_of(function: str, name: str, value: object, known: Collection[str]) -> None:
    """Refuse a word that is not among the `known` ones.

    Raises:
        ValueError: If it is not.
    """
    if value not in known:
        raise ValueError(f"{function}: {name}={value!r}, but it must be one of: {', '.join(known)}. Correct the word.")


def check_kinds(
    function: str, name: str, given: Sequence[str] | None, known: Sequence[str], *, also: Sequence[str] = ()
) -> tuple[str, ...]:
    """The kinds to draw from: those given, or all of `known` if `None`.

    Args:
        also: Kinds that are drawn only if they are named.

    Raises:
        TypeError: If `given` is one word instead of a sequence of words.
        ValueError: If it is empty or holds an unknown kind.
    """
    if given is None:
        return tuple(known)
    if isinstance(given, str):
        raise TypeError(f"{function}: {name}={given!r}, but it must be a sequence of kinds. Use ({given!r},).")
    kinds = tuple(given)
    if not kinds:
        raise ValueError(f"{function}: {name}={given!r}, but there must be a kind to draw. Use None for all of them.")
    for kind in kinds:
        one_of(function, name, kind, (*known, *also))
    return kinds
