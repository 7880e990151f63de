"""Every format, by exact text."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gbactl.report.compare import compare
from gbactl.report.text_formats import FORMATS, answer, for_stdout, render, stderr_sentences
from gbactl.tracking.mlflow_store import Run
from tests.support.report_examples import run, three


def golden(name: str) -> str:
    """Checked by eye; to renew one: render report() and read what changed."""
    return (Path(__file__).parents[2] / "golden" / name).read_text()


def report():  # type: ignore[no-untyped-def]
    return compare([*three(), run("gba", 4, None, status="FAILED")])


def test_table() -> None:
    assert render(report(), "table") == golden("report_table.txt")


def test_colour_is_only_for_terminals() -> None:
    assert "\x1b[" not in render(report(), "table")
    text = render(report(), "table", colour=True)
    assert "\x1b[" in text and "±0.01528" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_and_no_number_is_cut(width: int) -> None:
    text = render(report(), "table", width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for number in ("0.80667", "±0.01528", "-0.00333", "±0.02868", "22,000", "1.2/1/4", "1.50"):
        assert number in text
    assert "..." not in text


def test_the_keys_that_one_has_to_type_stay_whole() -> None:
    names = [f"some-group.a_key_with_a_long_name_{n}" for n in range(3)]
    runs = [run("gba", seed, 0.8, **dict.fromkeys(names, str(seed))) for seed in (1, 2)]
    lines = render(compare(runs, by=["mode"]), "table").splitlines()
    assert f"  mode,{','.join(names)}." in lines and max(map(len, lines)) > 80


def test_markdown() -> None:
    assert render(report(), "md") == golden("report.md")


def test_markdown_escapes_pipes() -> None:
    assert r"| a\|b | 1 |" in render(compare([run("a|b", 1, 0.8)]), "md")


def test_brackets_and_colons_of_a_value_are_no_markup_of_the_table() -> None:
    paths = ("[/a.gz,/b.gz]", "[/b.gz]", "[bold]:smile:")
    text = render(compare([run("sync", 1, 0.8, data__path=path) for path in paths]), "table")
    assert all(f"data.path={path.replace(',', ', ')}" in text or path in text for path in paths), text


def test_tex() -> None:
    assert render(report(), "tex") == golden("report.tex")


def test_a_minus_sign_in_tex_is_no_hyphen() -> None:
    text = render(compare([run("sync", 1, 0.8), run("gba-1", 1, 0.79)]), "tex")
    assert "gba-1 & 1 & 0.79000 & $-$0.01000 &" in text


@pytest.mark.parametrize(
    ("mode", "escaped"),
    [
        (r"a_b&50%#${}~^\x", r"a\_b\&50\%\#\$\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}x"),
        ("sync>gba@day2<|", r"sync\textgreater{}gba@day2\textless{}\textbar{}"),
        (">-1", r"\textgreater{}$-$1"),
    ],
    ids=["syntax", "signs that the default encoding lacks", "before a minus in math mode"],
)
def test_tex_escapes(mode: str, escaped: str) -> None:
    assert f"{escaped} & 1 & 0.80000 & " in render(compare([run(mode, 1, 0.8)]), "tex")


def test_csv_has_numbers_in_full_and_no_sentences() -> None:
    lines = render(report(), "csv").splitlines()
    assert lines[0].startswith("mode,n,auc_difference,auc_difference_half,pairs,auc_mean,auc_sd,")
    assert [line.split(",")[:2] for line in lines[1:]] == [["sync", "3"], ["gba", "3"]]
    assert float(lines[2].split(",")[3]) == pytest.approx(0.0286844, rel=1e-5)
    assert any("FAILED" in sentence for sentence in stderr_sentences(report(), "csv"))


def test_json_holds_everything() -> None:
    data = json.loads(render(report(), "json"))
    assert data["groups"][1]["difference"]["n"] == 3
    assert data["groups"][1]["stats"]["auc"]["mean"] == pytest.approx(0.806667, abs=1e-6)
    assert data["left_out"] == [{"run": "gba-s4 (gba40000)", "reason": "FAILED"}]


def mixture():  # type: ignore[no-untyped-def]
    """Real and virtual, with a named fault, with typed ones, and a run that was switched twice."""
    typed = "[{'kind': 'constant', 'workers': [1], 'factor': 4}, {'kind': 'random', 'workers': 'all', 'mean': 1.5}]"
    settings = [("local", "4", "[]", "none"), ("local", "4", "[{...}]", "one_slow"), ("virtual", "8", typed, "none")]
    runs = [
        run(mode, seed, 0.8, cluster__name=name, cluster__workers=n, faults__plans=plans, faults__name=called)
        for mode, seeds in (("sync", (1, 2)), ("gba", (1,))) for seed in seeds for name, n, plans, called in settings
    ]  # fmt: skip
    switched = run("sync", 3, 0.8, cluster__name="virtual", cluster__workers="8", faults__plans=typed)
    return compare([*runs, replace(switched, tags={"gbactl.mode": "sync>async@step1110>gba@step2220"})])


def test_a_mixture_fits_into_80_columns() -> None:
    text = render(mixture(), "table")
    assert text == golden("report_mixture.txt")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.splitlines()[0].startswith("mode")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("faults.plans", [{"kind": "constant", "workers": [1], "factor": 4}], "constant W1 x4"),
        ("switch.schedule", [{"at": {"day": 2}, "to": "gba"}], "gba@day2"),
    ],
)
def test_a_structure_by_which_runs_are_grouped_is_named(form: str, key: str, value: object, name: str) -> None:
    runs = [run("sync", 1, auc, **{key: typed}) for auc, typed in ((0.7, "[]"), (0.8, str(value)))]
    report = compare(runs, by=[key])
    assert name in render(report, form) and "{'" not in render(report, form)
    assert name in answer(report) and compare(runs, by=[key], baseline=name).baseline == name


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "table"])
def test_no_format_shows_pythons_dictionaries(form: str) -> None:
    assert "{'" not in render(mixture(), form)
    assert "faults.plans=constant W1 x4 + random all workers #" in render(mixture(), form)


def test_few_of_many_runs_are_named() -> None:
    left = [run("gba", seed, None, status="FAILED") for seed in range(4, 9)]
    newer = [run("gba", seed, 0.7, at=9, mode__iota="3") for seed in (1, 2)]
    lines = render(compare([*three(), *left, *newer]), "md").splitlines()
    assert "- Left out, FAILED: gba-s4 (gba40000), gba-s5 (gba50000), gba-s6 (gba60000) and 2 more." in lines
    assert "- Left out, repeated by a newer run: gba-s1 (gba10000), gba-s2 (gba20000)." in lines


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    text = render(compare([run("sync", 1, 0.8), run("gba", 1, 0.79)]), "table")
    assert "±" not in text.split("vs sync:")[0]
    assert "-0.01000" in text


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_ascii_but_for_one_sign_which_an_ascii_output_has_too(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = render(report(), form)
    assert ("±" in text) == (form != "json") and text.replace("±", "").isascii()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert for_stdout(text) == text
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert for_stdout(text).isascii() and for_stdout(text).count("+-") == text.count("±")
    if form == "table":
        assert "sync  3   0.81000         -" in text and "\n        +-0.01000           +-0.00000" in for_stdout(text)


def test_the_answer_names_the_fastest_that_keeps_the_auc_or_says_what_is_undecided() -> None:
    def line(mode: str, *aucs: float, eps: float) -> list[Run]:
        runs = [run(mode, seed, auc) for seed, auc in enumerate(aucs)]
        return [replace(each, metrics={**each.metrics, "eps": eps}) for each in runs]

    sync, gba = line("sync", 0.8, 0.81, 0.82, eps=10.0), line("gba", 0.8001, 0.81, 0.82, eps=20.0)
    worse, slow = line("async", 0.7, 0.711, 0.72, eps=30.0), line("bsp", 0.8, 0.81, 0.8201, eps=15.0)
    assert answer(compare([*sync, *gba, *worse, *slow])) == (
        "Against sync: the fastest with the same AUC or a better one is gba, same as sync (AUC +0.00003 ±0.00014, "
        "margin 0.0005); EPS 2.00 ±0.00 times sync's."
    )
    unsure = line("hop_bs", 0.79, 0.82, 0.82, eps=9.0)
    told = answer(compare([*sync, *worse, *unsure]))
    assert told.startswith("Against sync: async worse by 0.09967") and ", EPS 3.00 ±0.00 times sync's; 1 of" in told
    assert answer(compare([*sync, *worse, *unsure])).endswith("; 1 of 2 rows are undecided, more seeds are needed.")
    without = answer(compare([*sync, *gba, *slow], on="logloss"))
    assert without.endswith(": 2 of 2 rows are undecided, --margin or more seeds are needed.")
    untimed = [replace(each, metrics={**each.metrics, "eps": 0.0}) for each in (*gba, *slow)]
    told = answer(compare([*sync, *untimed]))
    assert "fastest" not in told and "bsp same as sync" in told and "; gba same as sync" in told
    assert answer(compare([*gba, *worse])) == "Highest: AUC 0.81003 (gba); EPS 30 (async)."
