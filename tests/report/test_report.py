"""The page of a run: every stage in its section, hostile content harmless, sizes bounded, absent stages not shown."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from made_run import make_evaluation, make_experiences, make_metrics, make_run, make_tokenizer

from pairwright import EID, Experience, Message, Table
from pairwright.errors import PairwrightError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.report import make_report, write_report
from pairwright.report.outcome import MAX_TRANSCRIPTS, _change
from pairwright.report.pairs_section import MAX_CHARACTERS, MAX_PAIRS, count_common, count_same_turns
from pairwright.report.run_folder import open_run
from pairwright.report.training_section import MAX_POINTS

HOSTILE = "\"'><script>document.title='owned'</script><img src=x onerror=alert(1)></style></pre>\u202e{{7*7}}javascript:alert(1)&lt;"
ALL = ["outcome", "funnel", "pairs", "tokens", "training", "settings"]


class Tags(HTMLParser):
    """The tags and attributes that a browser would see, and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def text_of(page):
    return " ".join("".join(Tags(page).text).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "support")


def test_a_whole_run_has_all_sections_with_the_outcome_first(run):
    report = make_report(run)
    assert report.sections == ALL
    text = text_of(report.html)
    assert text.index("Better by 0.") < text.index("experiences gave") < text.index("120 steps, completed.")
    assert "gate open asked for at least 0.05 with confidence 0.95" in text
    assert "pairwright" in text
    assert "2.13.0" in text


def test_the_page_is_self_contained_and_has_no_script(run):
    page = make_report(run).html
    found = Tags(page)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & set(found.tags)
    assert {value for name, value in found.attributes if name in ("src", "href")} == {
        "data:,",
        *(f"#{name}" for name in ALL),
    }
    assert not re.search(r"url\(|@import", page)
    assert any(name == "content" and value.startswith("default-src 'none'") for name, value in found.attributes)


def test_the_same_run_gives_the_same_bytes(run):
    assert make_report(run).html == make_report(run).html


def test_hostile_content_is_text_and_nothing_else(tmp_path):
    folder = make_run(tmp_path / "hostile", odd=HOSTILE)
    page = make_report(folder, title=HOSTILE).html
    found = Tags(page)
    assert not {"script", "img"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "\u202e" not in page
    assert text_of(page).count("<script>document.title") > 10
    assert found.tags.count("style") == 1


def test_keys_in_a_configuration_are_not_shown(tmp_path):
    (tmp_path / "config.yaml").write_text("key: sk-proj-abcdefghijklmnopqrstuvwxyz0123456789\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"header": "Bearer abcdefghijklmnopqrstuvwxyz0123456789"}))
    page = make_report(tmp_path).html
    assert "abcdefghijklmnopqrstuvwxyz" not in page
    assert "[REDACTED:openai_key]" in page


def test_the_run_and_its_stages_are_a_table_with_dates_and_without_nulls(tmp_path):
    stage = {
        "key": "f" * 32,
        "state": "done",
        "seconds": 2.5,
        "cpu_seconds": 4.0,
        "peak_memory_bytes": 2**28,
        "error": None,
    }
    about = {
        "command": "pairwright run c.yaml",
        "started": 1_700_000_000.5,
        "git": None,
        "seed": 3,
        "versions": {"numpy": "2"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({**about, "stages": {"round-1/pairs": stage}}))
    text = text_of(make_report(tmp_path).html)
    for part in ("pairwright run c.yaml", "2023-11-14 22:13 UTC", "numpy 2", "round-1/pairs", "256 MB"):
        assert part in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("gone", "sections"),
    [
        (["evaluation.json"], ["funnel", "pairs", "tokens", "training", "settings"]),
        (["pairs", "tokens"], ["outcome", "training", "settings"]),
        (["tokens", "model"], ["outcome", "funnel", "pairs", "training", "settings"]),
        (["tokens"], ALL),  # the run's tokenizer paints the shown pairs all the same
        (["metrics.jsonl", "config.yaml", "manifest.json"], ["outcome", "funnel", "pairs", "tokens"]),
    ],
)
def test_a_stage_that_is_absent_has_no_section(run, tmp_path, gone, sections):
    folder = tmp_path / "part"
    shutil.copytree(run, folder)
    for name in gone:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    report = make_report(folder)
    assert report.sections == sections
    assert all(f'href="#{name}"' in report.html for name in sections)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(PairwrightError, match="nothing to report on"):
        make_report(tmp_path)
    with pytest.raises(PairwrightError, match="no such folder"):
        make_report(tmp_path / "none")


def test_files_of_another_shape_end_in_one_line(tmp_path):
    (tmp_path / "evaluation.json").write_text('{"metrics": [{"name": 3}]}')
    with pytest.raises(PairwrightError, match=r"section 'outcome' cannot be made.*run that stage again"):
        make_report(tmp_path)
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(PairwrightError, match="cannot be read"):
        make_report(tmp_path)


def test_sides_are_shown_from_where_they_part():
    assert count_common("Thank you. It is here.", "Thank you. I do not know.") == len("Thank you. ")
    assert count_common("same", "same") == 4
    assert count_common("abc", "abd") == 0
    call = [Message("assistant", "look"), Message("tool", "found")]
    assert count_same_turns([*call, Message("assistant", "a")], [*call, Message("assistant", "b")]) == 2
    assert count_same_turns(call[:1], call) == 0  # a side is never left without a turn


def test_long_and_many_pairs_are_truncated_with_a_note(tmp_path):
    rows = [row for row in make_experiences(40, odd="x" * 3 * MAX_CHARACTERS) if row.reward is not None]
    with Table(tmp_path / "experience") as table:
        table.append(rows)
    summary = build_pairs([table], tmp_path / "pairs", PairOptions(near_duplicates=None))
    page = make_report(tmp_path).html
    text = text_of(page)
    assert f"{MAX_PAIRS} of {summary['pairs']} pairs, from the largest gap to the smallest." in text
    assert "more characters" in text
    assert len(page) < 12 * 3 * (MAX_CHARACTERS + 2_000) * 2


def test_regressions_show_the_transcripts_of_both_models(tmp_path):
    make_evaluation(tmp_path, gain=-0.2)
    for side in ("before", "after"):
        with Table(tmp_path / "evaluation" / side / "experience") as table:
            table.append(
                Experience(
                    eid=EID("b", f"held out {task}", run), kind="single_turn", prompt=[Message("user", f"ask {task}")],
                    completion=[Message("assistant", f"We said: {side} {task} run {run} <script>")],
                )
                for task in range(60)
                for run in (1, 0)
            )  # fmt: skip
    page = make_report(tmp_path).html
    text = text_of(page)
    metrics = json.loads((tmp_path / "evaluation.json").read_text())["metrics"]
    worst = [row["task"] for metric in metrics for row in metric["regressions"][:MAX_TRANSCRIPTS]]
    assert len(metrics[0]["regressions"]) > MAX_TRANSCRIPTS
    for side in ("before", "after"):
        told = re.findall(rf"We said: {side} (\d+) run 0", text)
        assert told == [task.removeprefix("held out ") for task in worst]
    assert "run 1 <" not in text
    assert "script" not in Tags(page).tags
    assert "pairwright view, with the folder" in text


def test_long_curves_keep_their_spikes_and_the_csv_every_row(tmp_path):
    make_metrics(tmp_path / "metrics.jsonl", 5 * MAX_POINTS)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    lines[600] = json.dumps(json.loads(lines[600]) | {"loss": 9.5})
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    report = make_report(tmp_path)
    loss = next(plot for plot in report.plots if plot.title == "Loss")
    assert "its band the lowest and the highest of them" in text_of(report.html)
    assert 'class="band accent"' in loss.svg
    assert ("loss", json.loads(lines[600])["step"], 9.5) in loss.rows
    assert len(loss.svg) < 40_000


def test_values_that_are_not_finite_and_torn_lines_are_counted(tmp_path):
    rows = [
        '{"step": 1, "loss": 0.5}',
        '{"step": 2, "loss": {"$float": "nan"}}',
        '{"step": 3, "loss": 1e305}',
        "[1]",
        '{"loss": 2}',
        '{"step": 4, "lo',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    text = text_of(make_report(tmp_path).html)
    assert "2 values are not finite and are not drawn." in text
    assert "3 lines of metrics could not be read" in text


@pytest.mark.parametrize(("falling", "expected"), [(True, "likelihood displacement"), (False, "chosen rose")])
def test_likelihood_displacement_is_reported_in_words(tmp_path, falling, expected):
    make_metrics(tmp_path / "metrics.jsonl", falling=falling)
    assert f"{expected} " in text_of(make_report(tmp_path).html)


def test_rounds_follow_each_other_and_the_last_is_shown(tmp_path):
    for number in (1, 2, 10):
        folder = tmp_path / f"round-{number}"
        folder.mkdir()
        make_metrics(folder / "metrics.jsonl", 10)
        make_evaluation(folder, gain=number / 20)
    report = make_report(tmp_path)
    assert "30 steps, 3 rounds, one after the other" in text_of(report.html)
    loss = next(plot for plot in report.plots if plot.title == "Loss")
    assert [row[1] for row in loss.rows[1:]] == list(range(1, 31))
    trend = next(plot for plot in report.plots if plot.name == "outcome-rounds")
    assert [row[0] for row in trend.rows[1:]] == [0.0, 1.0, 2.0, 9.0, 10.0]


def test_a_tokenizer_that_was_saved_again_is_known_by_its_ids(run, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(run, folder)
    (folder / "model" / "generation_config.json").write_text("{}")
    assert "tokens" in make_report(folder).sections
    other = json.loads((folder / "model" / "tokenizer.json").read_text())
    other["model"]["vocab"] = dict(
        zip(other["model"]["vocab"], reversed(other["model"]["vocab"].values()), strict=True)
    )
    (folder / "model" / "tokenizer.json").write_text(json.dumps(other))
    assert "tokens" not in make_report(folder).sections


def test_tokens_of_another_tokenizer_are_refused(run, tmp_path):
    other = make_tokenizer(tmp_path / "other")
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(PairwrightError, match="not the tokenizer that"):
        make_report(run, tokenizer=other)


def test_the_command_writes_the_page_and_the_plots(run, tmp_path):
    words = ["report", str(run), "-o", str(tmp_path / "out" / "page.html"), "--title", "Support", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sections"], found["bytes"] < 400_000) == (ALL, True)
    assert len(list((tmp_path / "out" / "plots").iterdir())) == 2 * found["plots"] + 1
    assert "<h1>Support</h1>" in (tmp_path / "out" / "page.html").read_text()


def test_an_unwritable_place_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PairwrightError, match="no report was written"):
        write_report(run, tmp_path / "file" / "report.html")


def test_refusals_and_dropped_content_are_on_the_page_even_if_nothing_is_painted(run, tmp_path):
    folder = tmp_path / "refused"
    shutil.copytree(run, folder)
    manifest = json.loads((folder / "tokens" / "manifest.json").read_text())
    manifest |= {"items": 9, "refused": {"dropped": 4, "too_long": 1}, "with_dropped_prompt_content": 2}
    (folder / "tokens" / "manifest.json").write_text(json.dumps(manifest))
    note = "dpo: 5 records are refused: dropped 4, too_long 1"
    (folder / "train.json").write_text(json.dumps({"state": "completed", "notes": [note]}))
    words = ("5 of 9 items are refused: dropped 4, too_long 1", "2 of", "tool schemas of the prompt", note)
    page = make_report(folder).html
    assert all(word in page for word in words)
    for part in (folder / "tokens").glob("sequences-*.parquet"):
        part.unlink()
    page = make_report(folder)
    assert "tokens" in page.sections
    assert words[0] in page.html


@pytest.mark.parametrize(
    ("better", "low", "high", "p", "word"),
    [
        ("lower", 0.001, 0.006, 3e-05, "worse"),
        ("higher", 0.001, 0.006, 3e-05, "better"),
        ("lower", -0.001, 0.008, 0.3, "within chance"),
    ],
)
def test_a_metric_that_got_worse_is_marked(better, low, high, p, word):
    difference = {"mean": 0.0035, "low": low, "high": high}
    assert word in str(_change({"better": better, "difference": difference, "sign_test_p": p}))


def test_tokenizers_are_those_of_the_run_and_those_that_its_configuration_or_training_names(tmp_path):
    run, base = tmp_path / "run", tmp_path / "project"
    for folder in (run / "train" / "model", base / "models" / "base"):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text("{}")
    (run / "config.yaml").write_text(f"base: {base}\nmodel: models/base\ntokens: {{tokenizer: null}}\n")
    assert open_run(run).tokenizers == [run / "train" / "model", base / "models" / "base"]
    (run / "config.yaml").write_text("- not ours\n")
    assert open_run(run).tokenizers == [run / "train" / "model"]
    (run / "train" / "train.json").write_text('{"inputs": {"tokenizer": "../../project/models/base"}}')
    assert [path.resolve() for path in open_run(run).tokenizers[1:]] == [(base / "models" / "base").resolve()]
    (run / "train" / "train.json").write_text('{"inputs": []}')
    assert open_run(run).tokenizers == [run / "train" / "model"]
