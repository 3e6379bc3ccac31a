"""A difference between two runs as a person reads it: one screen of 24 lines and 100 columns.

1. Settings that differ come first, by whether they can change bits; then what differs.
2. Then why, where, since when, how sure, what was not seen, and what to do next.
3. `difference_json` is all of it as data; docs/diff.md is its contract.

    different: data, step 6, rank 1
      the batch of step 6 is another one
    where    step 6, rank 1, phase data, slot batch
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

from bitstep.diff.difference import Bits, Cause, Difference, Received, Shown, Where
from bitstep.errors import printable
from bitstep.records import WHOLE_RUN
from bitstep.report import manifest

FORMAT: Final = 1
"""Version of the JSON."""
WIDTH: Final = 100
LINES: Final = 24
_LABEL: Final = 9
_SHOWN: Final = 3


def difference_text(difference: Difference, all_ranks: bool = False) -> str:
    """The first screen; with `all_ranks` a line for every rank below it. No line end at the end."""
    lines = [*_head(difference), *_body(difference)]
    last = [*_labelled("next", difference.hints[:2], 2)]
    lines = [*lines[: LINES - len(last)], *last]
    if all_ranks:
        lines += ["", *map(_received_line, difference.receivers)]
    return "\n".join(lines)


def _head(difference: Difference) -> Iterator[str]:
    """Settings that differ, then the title and what leads to it."""
    yield from manifest.head(difference.manifest, _SHOWN)
    rank = ""
    if difference.causes:
        ranks = difference.causes[0].ranks
        rank = f", rank{'s' if len(ranks) > 1 else ''} {_numbers(ranks)}" if ranks else ""
    yield _cut(difference.title + rank)
    if difference.causes:
        first = difference.causes[0]
        yield from _wrapped(first.title, "  ", 2)
        for sentence in first.because:
            yield from _wrapped(sentence, "  ", 2)
    else:
        for reason in difference.reasons[:4]:
            yield from _wrapped(reason, "  ", 2)


def _body(difference: Difference) -> Iterator[str]:
    for cause in difference.causes[:1]:
        yield from _labelled("where", [where_words(cause.where)], 2)
        yield from _labelled("bits", [f"A {_bits(cause.a)}, B {_bits(cause.b)}"], 2)
        yield from _labelled("before", [f"{cause.equal_before} records equal; paired "
                                        f"{cause.pairing}"], 2)  # fmt: skip
        yield from _labelled("since", [_since(difference)], 2)
        yield from _labelled("sure", [cause.sure], 2)
    others = [f"rank {_numbers(c.ranks)}: {c.kind.value}, step {c.where.step}: {c.title}"
              for c in difference.causes[1:]]  # fmt: skip
    yield from _labelled("also", others, 2)
    if difference.receivers:
        yield from _labelled("spread", [_spread(difference.receivers)], 2)
    yield from _labelled("placed", [
        f"attempt {one.attempt} of {one.run.upper()} at step {one.step} {one.how}"
        for one in difference.placed
    ], 2)  # fmt: skip
    if not difference.causes and difference.covered.steps:
        yield from _labelled("compared", [_covered(difference)], 2)
    reasons = () if difference.causes else difference.reasons
    yield from _labelled("not seen", [n for n in difference.notes if n not in reasons], 1)
    if difference.causes:
        yield from _labelled("damage", difference.damage, 1)


def _covered(difference: Difference) -> str:
    covered = difference.covered
    first, last = covered.steps or (0, 0)
    ranks = f"rank{'s' if len(covered.ranks) > 1 else ''} {_numbers(covered.ranks)}"
    records = f"{covered.records} records equal"
    return f"steps {first} to {last}, {ranks}, level {covered.level}: {records}"


def where_words(where: Where) -> str:
    """ "step 7, rank 0, phase data, op aten.random_ #0, slot rng"."""
    rank = "all ranks" if where.rank == WHOLE_RUN else f"rank {where.rank}"
    words = [f"step {where.step}", rank, f"phase {where.phase}"]
    words += [f"pass {where.pass_}"] if where.pass_ != "primary" else []
    words += [f"microbatch {where.microbatch}"] if where.microbatch >= 0 else []
    words += [f"module {where.module}"] if where.module else []
    words += [f"op {where.op} #{where.occurrence}"] if where.op else []
    words += [f"slot {where.slot}"]
    return ", ".join(words if where.part == "bits" else [*words, f"part {where.part}"])


def _bits(bits: Bits | None) -> str:
    if bits is None:
        return "no record"
    if bits.value is not None:
        return f"{bits.value} ({bits.dtype})"
    return f"{bits.digest:016x} {bits.dtype}{list(bits.shape)}"


def _since(difference: Difference) -> str:
    shown = [_shown_words(one) for one in difference.metrics[:4]]
    if difference.state:
        shown.append(f"state root from step {difference.state.step}")
    return "; ".join(shown) or "no metric and no state root differs"


def _shown_words(one: Shown) -> str:
    return f"{one.name} from step {one.step} (rank {one.rank}: A {one.a}, B {one.b})"


def _spread(receivers: Iterable[Received]) -> str:
    known = list(receivers)
    words = []
    for one in known[:_SHOWN]:
        how = f" through {one.op} from rank {_numbers(one.source)}" if one.source else ""
        words.append(f"rank {one.rank} at step {one.step}, phase {one.phase}{how}")
    more = f"; and {len(known) - _SHOWN} more ranks (--all-ranks)" if len(known) > _SHOWN else ""
    return "; ".join(words) + more


def _received_line(one: Received) -> str:
    source = f" from rank {_numbers(one.source)}" if one.source else ""
    return printable(f"rank {one.rank}: step {one.step}, phase {one.phase}, {one.op} {one.slot}"
                     f"{source}")  # fmt: skip


def _numbers(numbers: Iterable[int]) -> str:
    """ "0, 2-5, 9": sorted, and not longer than a line allows."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")


def _labelled(label: str, texts: Iterable[str], most: int) -> Iterator[str]:
    """Texts as lines behind their label, `most` lines each, and at most three of them."""
    known = list(texts)
    for at, text in enumerate(known[:_SHOWN]):
        lines = list(_wrapped(text, " " * _LABEL, most))
        if at == 0:
            lines[0] = f"{label:{_LABEL}}" + lines[0].lstrip()
        yield from lines
    if len(known) > _SHOWN:
        yield " " * _LABEL + f"and {len(known) - _SHOWN} more (--json)"


def _wrapped(text: str, indent: str, most: int) -> list[str]:
    lines = textwrap.wrap(printable(text), WIDTH - len(indent)) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], _cut(" ".join(lines[most - 1 :]), WIDTH - len(indent))]
    return [indent + line for line in lines]


def _cut(text: str, width: int = WIDTH) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 3] + "..."


def difference_json(difference: Difference) -> dict[str, Any]:
    """All of it; docs/diff.md says what each key holds."""
    return {
        "format": FORMAT,
        "outcome": difference.outcome.name.lower(),
        "status": int(difference.outcome),
        "title": difference.title,
        "runs": {"a": difference.a, "b": difference.b},
        "manifest": manifest.differences_json(difference.manifest),
        "placed": [dataclasses.asdict(one) for one in difference.placed],
        "causes": [_cause_json(one) for one in difference.causes],
        "receivers": [dataclasses.asdict(one) for one in difference.receivers],
        "metrics": [dataclasses.asdict(one) for one in difference.metrics],
        "state": dataclasses.asdict(difference.state) if difference.state else None,
        "covered": dataclasses.asdict(difference.covered),
        "notes": list(difference.notes),
        "damage": list(difference.damage),
        "reasons": list(difference.reasons),
        "hints": list(difference.hints),
    }


def _cause_json(cause: Cause) -> dict[str, Any]:
    where = dataclasses.asdict(cause.where)
    where["pass"] = where.pop("pass_")
    return {
        "kind": cause.kind.value,
        "where": where,
        "title": cause.title,
        "because": list(cause.because),
        "sure": cause.sure,
        "a": _bits_json(cause.a),
        "b": _bits_json(cause.b),
        "ranks": list(cause.ranks),
        "equal_before": cause.equal_before,
        "pairing": cause.pairing,
    }


def _bits_json(bits: Bits | None) -> dict[str, Any] | None:
    if bits is None:
        return None
    return {
        "digest": f"{bits.digest:016x}",
        "dtype": bits.dtype,
        "shape": list(bits.shape),
        "seq": bits.seq,
        "value": bits.value,
    }
