"""The Python API as a notebook uses it: the cells of the page that shows it, and an interrupt in the midst of one."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

import gbactl
from tests.support.pages import blocks

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
run_kernel = pytest.importorskip("jupyter_client.manager").run_kernel

PAGE = "docs/how-to/use-from-python.md"
SMALL = (
    '"data.days=2", "data.rows_per_day=4000", "data.max_cardinality=100", '
    '"model.dim=4", "model.hidden=[8]", "cluster.workers=2", "collective=shm", "checkpoint.interval_steps=2"'
)


def client(cells: list[str], folder: Path) -> object:
    """Client of a notebook with these cells, which runs in a folder of its own."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return nbclient.NotebookClient(book, timeout=200, kernel_name="python3", resources={"metadata": {"path": folder}})


def shown(cell: object, form: str) -> list[str]:
    """What a cell shows in one form."""
    return [output["data"][form] for output in cell.outputs if form in output.get("data", {})]  # type: ignore[attr-defined]


@pytest.mark.beside
def test_the_cells_of_the_page_run_in_a_notebook(tmp_path: Path) -> None:
    cells = [block.text.replace('"checkpoint=full"', f'"checkpoint=full", {SMALL}') for block in blocks(PAGE, "python")]
    book = client([*cells, "run.rounds['auc'].iloc[-1] == run.auc"], tmp_path).execute()  # type: ignore[attr-defined]
    train, compare, number, load, model, error, last = book.cells
    assert any("<progress" in form and "100 %" in form for form in shown(train, "text/html"))
    (output,) = compare.outputs
    table, plain = output["data"]["text/markdown"], output["data"]["text/plain"]
    assert "vs sync" in plain and "\nsync " in plain and "\ngba " in plain
    assert "| gba |" in table and "| sync |" in table and "vs sync" in table
    assert abs(float(shown(number, "text/plain")[0].split("(")[-1].rstrip(")"))) < 1
    assert any("logloss" not in text and "auc" in text for text in shown(load, "text/plain"))
    assert "tensor([0." in shown(model, "text/plain")[0]
    assert "mode" in error.outputs[0]["text"]
    assert "True" in shown(last, "text/plain")[0]


@pytest.mark.beside
def test_a_notebook_that_trains_nothing_is_not_asked_for_ipywidgets(tmp_path: Path) -> None:
    read = "try:\n    gbactl.load('nosuchrun')\nexcept gbactl.errors.UsageError as error:\n    print(error)"
    [read] = client([f"import gbactl\n{read}"], tmp_path).execute().cells  # type: ignore[attr-defined]
    assert [output["text"].split(";")[0] for output in read.outputs] == ["There is no run nosuchrun"]


@pytest.mark.slow
@pytest.mark.beside
def test_an_interrupt_stops_every_process_of_the_run(tmp_path: Path) -> None:
    slow = '"faults.plans=[{kind: constant, workers: all, factor: 200}]"'
    call = f'import gbactl\ngbactl.train("experiment=smoke", "mode=gba", "run_dir=r", {slow}, {SMALL})'
    with run_kernel(kernel_name="python3", cwd=tmp_path) as kernel:
        sent = kernel.execute(f"import os\nprint(os.getpid())\n{call}")
        while (told := kernel.get_iopub_msg(timeout=60))["msg_type"] != "stream":
            pass
        process = psutil.Process(int(told["content"]["text"].split()[0]))
        log, deadline = tmp_path / "r" / "events.log", time.monotonic() + 100
        while not (log.exists() and log.stat().st_size > 500):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        nodes = process.children(recursive=True)
        assert len(nodes) > 3
        process.send_signal(signal.SIGINT)
        while (reply := kernel.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != sent:
            pass
        assert reply["content"].get("ename") == "KeyboardInterrupt", reply["content"]
        assert sum(node.is_running() for node in nodes) <= 1  # the fork server, which serves the next training
    assert json.loads((tmp_path / "r" / "result.json").read_text())["status"] == "KILLED"
    assert gbactl.load(tmp_path / "r").auc is None
