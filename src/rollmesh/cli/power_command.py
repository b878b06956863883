"""`rollmesh power`: how many episodes a question needs (layer 9)."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.output import own_output
from rollmesh.errors import InvalidSpec
from rollmesh.results import power as planning

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """How many episodes one question needs.

    Attributes:
        question: The question, in words.
        episodes: Number of episodes of each model.
        method: How the number came about.
    """

    question: str
    episodes: int
    method: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What `rollmesh power` was asked; None where nothing was."""

    rate: float | None = None
    detect: float | None = None
    paired_agreement: float | None = None
    width: float | None = None
    sd: float | None = None
    power: float = planning.DEFAULT_POWER
    confidence: float = planning.DEFAULT_CONFIDENCE


def power_command(
    *,
    rate: float | None = None,
    detect: float | None = None,
    paired_agreement: float | None = None,
    width: float | None = None,
    sd: float | None = None,
    power: float = 0.8,
    confidence: float = 0.95,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Say how many episodes it takes to know something.

    Exit codes: 0 told, 2 bad arguments.

    Examples: rollmesh power --rate 0.6 --detect 0.1 (do two models differ by so much?), rollmesh
    power --rate 0.6 --width 0.05 (what is the rate?), rollmesh power --sd 30 --detect 5 (do mean
    returns differ?).

    Parameters
    ----------
    rate
        The success rate that is expected.
    detect
        The difference that must not be missed: of success rates with --rate, of mean returns with
        --sd; below 0 where the other model does worse.
    paired_agreement
        The share of planned episodes that will end the same under both models; supposed to be that
        of unrelated outcomes if left out.
    width
        How narrow the interval of the success rate is to be, from end to end.
    sd
        The standard deviation of what the returns of a pair differ by.
    power
        How probably the difference is found if it is there.
    confidence
        Of the interval; 1 less the error rate of the test.
    json
        Print the answers as JSON.
    """
    asked = Asked(
        rate=rate,
        detect=detect,
        paired_agreement=paired_agreement,
        width=width,
        sd=sd,
        power=power,
        confidence=confidence,
    )
    return _tell(asked, as_json=json)


def _tell(asked: Asked, *, as_json: bool) -> int:
    with own_output() as output:
        try:
            _check(asked)
            needs = list(answer(asked))
        except ValueError as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        if as_json:
            output.result(json_module.dumps([asdict(need) for need in needs], indent=2))
        else:
            output.result("\n".join(_lines(needs)))
        return exit_codes.OK


def answer(asked: Asked) -> Iterator[Need]:
    """Yield the answers to what was asked.

    Raises:
        ValueError: An argument is out of its range.
    """
    sure = {"confidence": asked.confidence}
    both = {"power": asked.power, **sure}
    if asked.rate is not None and asked.width is not None:
        yield Need(
            question=f"know a success rate near {asked.rate:g} within {asked.width:g}",
            episodes=planning.episodes_for_width(asked.rate, asked.width, **sure),
            method="Wilson",
        )
    if asked.rate is not None and asked.detect is not None:
        differing = planning.disagreement(
            asked.rate, asked.detect, agreement=asked.paired_agreement
        )
        what = f"tell {asked.rate:g} from {asked.rate + asked.detect:g}"
        yield Need(
            question=f"{what}, same planned episodes",
            episodes=planning.episodes_paired(asked.detect, differing, **both),
            method=f"exact McNemar, {1 - differing:.3g} of the episodes end the same",
        )
        yield Need(
            question=f"{what}, different episodes",
            episodes=planning.episodes_unpaired(asked.rate, asked.detect, **both),
            method="two proportions",
        )
    if asked.sd is not None and asked.detect is not None:
        yield Need(
            question=f"find a difference of {asked.detect:g} in mean return, same planned episodes",
            episodes=planning.episodes_for_return(asked.detect, asked.sd, **both),
            method=f"paired t, deviation {asked.sd:g}",
        )


def _check(asked: Asked) -> None:
    if asked.rate is None and asked.sd is None:
        raise InvalidSpec("power", "wants --rate for success rates or --sd for returns")
    if asked.detect is None and (asked.width is None or asked.rate is None):
        raise InvalidSpec("power", "wants a question: --detect, or --rate with --width")
    if asked.width is not None and asked.rate is None:
        raise InvalidSpec("--width", "is of a success rate: add --rate")
    if asked.paired_agreement is not None and (asked.rate is None or asked.detect is None):
        raise InvalidSpec("--paired-agreement", "is of success: add --rate and --detect")


def _lines(needs: list[Need]) -> Iterator[str]:
    counts = [_count(need.episodes) for need in needs]
    wide = max(map(len, counts))
    for need, count in zip(needs, counts, strict=True):
        yield f"{count:>{wide}} episodes  to {need.question} ({need.method})"
    if any("planned" in need.question for need in needs):
        yield "of each model"


def _count(episodes: int) -> str:
    return f"{episodes:,}{' or more' if episodes >= planning.MOST_EPISODES else ''}"
