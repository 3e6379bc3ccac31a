"""docs/fingerprint.md is enough to write the fingerprint again: its program is run as printed."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fingerprint.md").read_text(encoding="utf-8")
GOLDEN = json.loads((ROOT / "tests" / "golden" / "fingerprint.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page():
    """The names that the page's program defines; K is kept, as it is made anew for each sum."""
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    k = {table: names["make_k"](table) for table in (1, 2)}
    names["make_k"] = k.__getitem__
    return names


def rows(width):
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip("`") for cell in line] for line in lines if len(line) == width]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_page_program_gives_the_golden_sums(page, case):
    data = bytes.fromhex(case["hex"]) * case["times"]
    for table in (1, 2):
        assert f"{page['sum_of'](data, case['start'], table):016x}" == case[f"table_{table}"]


def test_the_page_program_gives_the_golden_root(page):
    named = {
        case["name"]: (int(case["table_1"], 16), case["dtype"], tuple(case["shape"]))
        for case in GOLDEN["cases"]
        if case["start"] == 0
    }
    assert f"{page['root'](named):016x}" == GOLDEN["root"]
    assert f"under their names: `{GOLDEN['root']}`" in PAGE


def test_the_page_program_gives_the_golden_tables(page):
    for name, values in GOLDEN["tables"].items():
        k = page["make_k"](int(name))
        assert [f"{x:08x}" for x in (*k[:2], *k[-2:])] == [*values["first"], *values["last"]]
        assert sum(k) == values["sum"]
        factors = [page["a"](block, int(name)) for block in (0, 1, 2**32)]
        assert [f"{factor:016x}" for factor in factors] == values["a"]


def test_the_printed_tables_are_the_golden_ones():
    printed = [
        [name, *values["first"], *values["last"], str(values["sum"]), *values["a"]]
        for name, values in GOLDEN["tables"].items()
    ]
    assert [row for row in rows(9) if row[0] in "12"] == printed
    cases = []
    for case in GOLDEN["cases"]:
        pattern = f"{case['hex']}` x {case['times']}" if case["hex"] else "none"
        shape, start = str(tuple(case["shape"])), str(case["start"])
        sums = (case["table_1"], case["table_2"])
        cases.append([case["name"], case["dtype"], shape, pattern, start, *sums])
    assert [row for row in rows(7) if row[0] not in ("case", "---")] == cases
