"""Displays and results of cells, and their limits."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from execd.kernel import mime_bundles
from tests import nasty
from tests.kernel.harness import Cell, WorkerProcess, Zygote
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    NewWorker = Callable[..., WorkerProcess]

pytestmark = pytest.mark.any_kernel

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_display_is_a_mime_bundle(worker: WorkerProcess) -> None:
    [frame] = worker.run("from IPython.display import HTML\ndisplay(HTML('<b>bold</b>'))").of(
        "display"
    )
    assert frame["data"] == {
        "text/html": "<b>bold</b>",
        "text/plain": "<IPython.core.display.HTML object>",
    }
    assert (frame["metadata"], frame["display_id"], frame["update"]) == ({}, None, False)


@pytest.mark.parametrize(
    ("expression", "mime", "value"),
    [
        ("Markdown('*x*')", "text/markdown", "*x*"),
        ("Latex('$x$')", "text/latex", "$x$"),
        (
            "SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')",
            "image/svg+xml",
            '<svg xmlns="http://www.w3.org/2000/svg"/>',
        ),
        ("JSON({'a': [1, None]})", "application/json", {"a": [1, None]}),
        ("Javascript('1')", "application/javascript", "1"),
    ],
)
def test_each_kind_of_result_has_its_mime_type(
    worker: WorkerProcess, expression: str, mime: str, value: object
) -> None:
    [frame] = worker.run(f"from IPython.display import *\n{expression}").of("result")
    assert frame["data"][mime] == value
    assert "text/plain" in frame["data"]


def test_images_are_base64(worker: WorkerProcess) -> None:
    [frame] = worker.run(f"from IPython.display import Image\nImage({PNG!r}, format='png')").of(
        "result"
    )
    assert base64.b64decode(frame["data"]["image/png"]) == PNG


def test_own_representations_count(worker: WorkerProcess) -> None:
    worker.run(
        "class Own:\n"
        "    def _repr_html_(self): return '<i>own</i>'\n"
        "    def _repr_mimebundle_(self, **_): return {'application/x-own': {'n': 1}}"
    )
    [frame] = worker.run("Own()").of("result")
    assert frame["data"]["application/x-own"] == {"n": 1}
    cell = worker.run(
        "class Bad:\n"
        "    def _repr_html_(self): raise ValueError\n"
        "    def __repr__(self): return 'bad'\n"
        "Bad()"
    )
    assert cell.text == "bad"


@pytest.mark.parametrize(
    "register",
    [
        "html.for_type(int, form)",
        "html.for_type(object, form)",
        "html.for_type_by_name('builtins', 'int', form)",
        "html.type_printers[int] = form",
        "html.singleton_printers[id(7)] = form",
        "html.type_printers = {**html.type_printers, int: form}",
        "html.deferred_printers = {('builtins', 'int'): form}",
        "html.singleton_printers = {id(7): form}",
        "html.type_printers = dict(html.type_printers)\nhtml.for_type(int, form)",
        "html.deferred_printers = dict(html.deferred_printers)\n"
        "html.for_type_by_name('builtins', 'int', form)",
        "formatter.mimebundle_formatter.for_type(int, lambda value, **_: "
        "{'text/html': form(value)})",
    ],
)
def test_a_form_that_is_registered_for_numbers_is_shown(
    worker: WorkerProcess, register: str
) -> None:
    assert worker.run("7").frames[0]["data"] == {"text/plain": "7"}
    worker.run(
        "formatter = get_ipython().display_formatter\nhtml = formatter.formatters['text/html']"
    )
    worker.run(f"form = lambda value: f'<b>{{value}}</b>'\n{register};")
    assert worker.run("7").frames[0]["data"] == {"text/plain": "7", "text/html": "<b>7</b>"}


@pytest.mark.parametrize(
    "change",
    [
        "get_ipython().run_line_magic('precision', '2')",
        "plain.for_type(float, lambda v, p, c: p.text('a float'))",
        "plain.type_printers = {float: lambda v, p, c: p.text('a float')}",
        "plain.singleton_printers[id(number)] = lambda v, p, c: p.text('this one')",
        "plain.singleton_printers = {id(number): lambda v, p, c: p.text('this one')}",
        "plain.pprint = False",
        "plain.type_printers = dict(plain.type_printers)\n"
        "plain.for_type(float, lambda v, p, c: p.text('a copy'))",
        "ours.formatters['x/again'] = plain",
        "import IPython.lib.pretty as p\nclass P(p.RepresentationPrinter):\n"
        "    def pretty(self, value): self.text('by another')\np.RepresentationPrinter = P",
        "from IPython.core.formatters import PlainTextFormatter as P\n"
        "class Ours(P):\n"
        "    def __call__(self, value): return 'ours'\n"
        "ours.formatters['text/plain'] = Ours()",
        "ours.formatters['text/plain'] = lambda value: 'a function'",
    ],
)
def test_a_number_looks_as_somebody_has_said_that_it_should(
    worker: WorkerProcess, change: str
) -> None:
    worker.run(
        "number = 2.5000\n"
        "ours = get_ipython().display_formatter\n"
        "plain = ours.formatters['text/plain']"
    )
    assert worker.run("number").text == "2.5"
    worker.run(f"{change};")
    worker.run(
        "from IPython.core.formatters import DisplayFormatter\n"
        "expected = DisplayFormatter.format(ours, number)[0]['text/plain']"
    )
    assert worker.run("number").text == worker.run("print(expected)").stdout.rstrip("\n")


def test_a_number_of_more_digits_than_python_converts_is_an_error_that_is_shown(
    worker: WorkerProcess,
) -> None:
    cell = worker.run("10**5000")
    assert [frame["name"] for frame in cell.of("error")] == ["ValueError"]


def test_a_list_whose_item_cannot_be_shown_says_so_once(worker: WorkerProcess) -> None:
    cell = worker.run("class Bad:\n    def __repr__(self): raise ValueError('no')\n[Bad()]")
    assert [frame["name"] for frame in cell.of("error")] == ["ValueError"]
    assert (cell.stderr, cell.done["status"]) == ("", "error")


def test_a_signal_handler_may_display_while_the_cell_does(worker: WorkerProcess) -> None:
    worker.run(
        "import signal\n"
        "ticks = 0\n"
        "def tick(*_):\n"
        "    global ticks\n"
        "    ticks += 1\n"
        "    display('tick')"
    )
    cell = worker.run(
        "signal.signal(signal.SIGALRM, tick); signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n"
        "for number in range(2000): display(number)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "print(ticks)"
    )
    assert cell.done["status"] == "success", cell.of("error")
    texts = [frame["data"]["text/plain"] for frame in cell.of("display")]
    assert [text for text in texts if text != "'tick'"] == [str(number) for number in range(2000)]
    assert texts.count("'tick'") == int(cell.stdout) > 0


def test_displays_can_be_updated_and_cleared(worker: WorkerProcess) -> None:
    cell = worker.run(
        "handle = display(1, display_id='a')\n"
        "handle.update(2)\n"
        "from IPython.display import clear_output\n"
        "clear_output(wait=True)"
    )
    first, second = cell.of("display")
    assert (first["display_id"], first["update"]) == ("a", False)
    assert (second["display_id"], second["update"], second["data"]["text/plain"]) == (
        "a",
        True,
        "2",
    )
    assert cell.of("clear_output")[0]["wait"] is True


def test_displays_results_and_errors_come_in_order(worker: WorkerProcess) -> None:
    kinds = [frame["type"] for frame in worker.run("display(1)\ndisplay(2)\n3").frames]
    assert kinds == ["display", "display", "result", "done"]
    kinds = [frame["type"] for frame in worker.run("display(1)\n1 / 0").frames]
    assert kinds == ["display", "error", "done"]


@pytest.mark.third_party
def test_a_plot_comes_as_png_without_a_line_of_code_for_it(worker: WorkerProcess) -> None:
    assert worker.run("import sys; 'matplotlib' in sys.modules").text == "False"
    [frame] = worker.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);").of("display")
    assert base64.b64decode(frame["data"]["image/png"]).startswith(PNG)
    [frame] = worker.run("fig, ax = plt.subplots()\nax.plot([3, 1, 2]);").of("display")
    assert base64.b64decode(frame["data"]["image/png"]).startswith(PNG)
    cell = worker.run("plt.plot([1]); plt.show()\nplt.plot([2]); plt.show()")
    assert [sorted(frame["data"]) for frame in cell.of("display")] == [
        ["image/png", "text/plain"]
    ] * 2
    assert worker.run("fig").of("result")[0]["data"]["image/png"]


@pytest.mark.third_party
def test_programs_of_a_cell_do_not_inherit_the_backend(worker: WorkerProcess) -> None:
    worker.run("import matplotlib.pyplot as plt\nplt.plot([1]);")
    assert worker.run("!echo [$MPLBACKEND]").stdout == "[]\n"


@pytest.mark.third_party
def test_a_backend_of_the_environment_is_respected(new_worker: NewWorker) -> None:
    worker = new_worker(env={"MPLBACKEND": "Agg", "HOME": "/tmp"})
    assert (
        worker.run("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.get_backend().lower()").text
        == "'agg'"
    )


@pytest.mark.third_party
def test_matplotlib_alone_has_the_backend_as_soon_as_it_is_imported(worker: WorkerProcess) -> None:
    code = "import matplotlib\nmatplotlib.rcParams['backend']"
    assert "matplotlib_inline" in str(worker.run(code).text)


@pytest.mark.third_party
def test_matplotlib_magic_and_formats_work(worker: WorkerProcess) -> None:
    assert worker.run("%matplotlib inline").error is None
    cell = worker.run(
        "%config InlineBackend.figure_formats = ['svg']\n"
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1]);"
    )
    assert "image/svg+xml" in cell.of("display")[0]["data"]


@pytest.mark.third_party
def test_preloaded_matplotlib_draws_inline_in_each_worker(workers: list[WorkerProcess]) -> None:
    zygote = Zygote(preload=("matplotlib.pyplot",))
    for _ in range(2):
        workers.append(zygote.fork())
        cell = workers[-1].run("import matplotlib.pyplot as plt\nplt.plot([1]);")
        assert "image/png" in cell.of("display")[0]["data"]
    zygote.close()


@pytest.mark.third_party
def test_a_table_comes_as_html_and_a_formula_as_latex(worker: WorkerProcess) -> None:
    [frame] = worker.run("import pandas as pd\npd.DataFrame({'a': [1, 2]})").of("result")
    assert "<table" in frame["data"]["text/html"]
    [frame] = worker.run("import sympy\nx = sympy.Symbol('x')\nsympy.sqrt(x) / 2").of("result")
    assert "\\sqrt{x}" in frame["data"]["text/latex"]


@pytest.mark.third_party
def test_what_json_cannot_say_is_said_as_near_as_can_be(worker: WorkerProcess) -> None:
    code = (
        "import numpy as np\n"
        "display({'application/json': {'nan': float('nan'), 1: (2, b'x'), 'o': object, 'n': "
        "np.float64(1.5)}}, raw=True)"
    )
    [frame] = worker.run(code).of("display")
    data = frame["data"]["application/json"]
    assert (data["nan"], data["1"], data["n"]) == (None, [2, "eA=="], 1.5)
    assert "object" in data["o"]


@pytest.fixture
def nasty_cell(worker: WorkerProcess) -> Callable[[str], Cell]:
    worker.run(nasty.DEFINITIONS)
    return worker.run


@settings(examples(2), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nasty.VALUES, nasty.VALUES)
def test_any_display_and_result_is_a_frame_that_every_reader_takes(
    nasty_cell: Callable[[str], Cell], shown: str, returned: str
) -> None:
    cell = nasty_cell(
        f"bundle = {{'application/json': {shown}, 'x/y': {shown}}}\n"
        f"display(bundle, metadata={{'m': {shown}}}, raw=True)\n"
        f"Bundle({returned})"
    )
    if cell.error is None:
        [display], [result] = cell.of("display"), cell.of("result")
        nasty.check(json.dumps([display["data"], display["metadata"], result["data"]]).encode())
    else:
        assert cell.error["value"] == "a value that contains itself has no JSON form"
        assert "loop" in shown + returned


SHOW = "display({'application/json': x}, raw=True)"


def test_metadata_of_a_wrong_type_are_left_out(worker: WorkerProcess) -> None:
    code = "class R:\n    def _repr_mimebundle_(self, **_): return {'text/plain': 'r'}, [1]\nR()"
    [frame] = worker.run(code).of("result")
    assert (frame["data"], frame["metadata"]) == ({"text/plain": "r"}, {})


@pytest.mark.parametrize("loop", ["x = []; x += [x, x]", "x = {}; x['x'] = (x, {1: x})"])
def test_value_that_contains_itself_fails_at_once(worker: WorkerProcess, loop: str) -> None:
    error = worker.run(f"{loop}; {SHOW}").error
    assert error is not None
    assert error["name"] == "ValueError"
    assert worker.run("'alive'").text == "'alive'"


def test_a_value_whose_json_is_longer_than_memory_is_said_to_be_omitted(
    worker: WorkerProcess,
) -> None:
    cell = worker.run(f"x = 1\nfor _ in range(45): x = [x, x]\n{SHOW}")
    assert "omitted: more than" in cell.of("display")[0]["data"]["text/plain"]


@pytest.mark.parametrize("show", ["x", SHOW], ids=["text", "json"])
def test_a_value_that_repeats_its_parts_costs_no_more_than_the_text_that_is_shown(
    worker: WorkerProcess, show: str
) -> None:
    worker.run(
        "n = 0\n"
        "class Part:\n"
        "    def __repr__(self):\n        global n\n        n += 1\n        return 2000 * 'p'\n"
        "x = Part()\n"
        "for _ in range(45): x = [x, x]"
    )
    [frame] = [frame for frame in worker.run(show).frames if "data" in frame]
    assert "omitted" in frame["data"]["text/plain"]
    assert 0 < int(worker.run("n").text or "") < 1000


def test_a_value_that_repeats_a_large_part_is_shown_in_full(worker: WorkerProcess) -> None:
    cell = worker.run(f"y = list(range(1000))\nx = [y, [y, y], {{'y': [[y]]}}, (y,)]\n{SHOW}")
    y = list(range(1000))
    shown = [y, [y, y], {"y": [[y]]}, [y]]
    assert cell.of("display")[0]["data"]["application/json"] == shown


def test_a_value_of_many_levels_ends_in_a_remark(worker: WorkerProcess) -> None:
    cell = worker.run(f"x = 1\nfor _ in range(400): x = {{'x': x}}\n{SHOW}")
    assert "[... more than 50 levels]" in json.dumps(cell.of("display"))


@pytest.mark.parametrize("digits", [308, 309, 700, 5000, 1_000_000])
def test_an_integer_beyond_a_double_is_its_digits(worker: WorkerProcess, digits: int) -> None:
    cell = worker.run(f"n = 10 ** {digits}\ndisplay({{'application/json': [n, -n]}}, raw=True)")
    plus, minus = cell.of("display")[0]["data"]["application/json"]
    if digits == 308:
        assert (plus, minus) == (10**digits, -(10**digits))
    elif digits == 309:
        assert (plus, minus) == (str(10**digits), str(-(10**digits)))
    else:
        whole = hex(10**digits)
        assert (plus, minus) == (
            mime_bundles.truncate(whole),
            mime_bundles.truncate("-" + whole),
        )


def test_a_long_text_is_cut_and_says_so(worker: WorkerProcess) -> None:
    text = worker.run("'x' * 10_000_000").text
    assert text is not None
    assert len(text) < mime_bundles.TEXT_CHARACTERS + 100
    assert "cut; its length is 10000000]" in text
    assert worker.run("'y' * 1000").text == repr("y" * 1000)
    assert "cut; its length is" in (worker.run("b'y' * 1_000_000").text or "")
    assert "omitted]" in (
        worker.run("class Long:\n    def __repr__(self): return 'z' * 1_000_000\nLong()").text or ""
    )
    error = worker.run("raise ValueError('z' * 10_000_000)").error
    assert error is not None
    assert len(json.dumps(error)) < 4 * mime_bundles.TEXT_CHARACTERS


def test_a_string_of_a_gigabyte_is_no_trouble(worker: WorkerProcess) -> None:
    assert "cut; its length is" in (worker.run("'x' * (1 << 30)").text or "")
    assert worker.run("len(_)").text == str(1 << 30)


def test_displays_of_a_cell_are_bounded_and_what_is_missing_is_said(worker: WorkerProcess) -> None:
    cell = worker.run(
        "from IPython.display import HTML\n"
        "for _ in range(5):\n"
        "    display(HTML('x' * 10_000_000))\n"
        "display('small')"
    )
    texts = [frame["data"].get("text/plain") for frame in cell.of("display")]
    assert sum("omitted" in text for text in texts) == 3
    assert (
        sum(len(json.dumps(frame)) for frame in cell.of("display"))
        < mime_bundles.CELL_BYTES + mime_bundles.LATE_BYTES
    )
    assert "omitted" not in texts[0]
    assert worker.run("display('again')").of("display")[0]["data"]["text/plain"] == "'again'"


def test_endless_displays_end_in_a_note(worker: WorkerProcess) -> None:
    cell = worker.run(
        "from IPython.display import HTML\n"
        "blob = HTML('x' * 1_000_000)\n"
        "for _ in range(40): display(blob)\n"
        "for _ in range(20_000): display(1)"
    )
    assert cell.done["status"] == "success"
    assert "more displays omitted" in cell.of("display")[-1]["data"]["text/plain"]
    assert len(cell.of("display")) < 15_000


def test_threads_may_display_while_the_cell_runs(worker: WorkerProcess) -> None:
    code = (
        "import threading\n"
        "threads = [threading.Thread(target=lambda: "
        "[display(n) for n in range(50)]) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads];"
    )
    assert len(worker.run(code).of("display")) == 400


def test_a_result_that_cannot_be_shown_is_an_error_and_kept(worker: WorkerProcess) -> None:
    cell = worker.run("class Bad:\n    def __repr__(self): raise ValueError('unspeakable')\nBad()")
    assert cell.done["status"] == "error"
    assert cell.error is not None
    assert (cell.error["name"], cell.error["value"]) == ("ValueError", "unspeakable")
    assert "Cell In[1], line 2" in "".join(cell.error["traceback"])
    assert cell.stderr == ""
    assert worker.run("type(_).__name__").text == "'Bad'"
    assert (
        worker.run("display(_1)\n1").text == "1"
    )  # the display's error is shown, the cell succeeds


def test_a_display_of_a_thread_belongs_to_the_cell_that_runs(worker: WorkerProcess) -> None:
    worker.run(
        "import threading\n"
        "go, end = threading.Event(), threading.Event()\n"
        "from IPython.display import display as show\n"
        "threading.Thread(target=lambda: (go.wait(), show('late'), end.set())).start()"
    )
    cell = worker.run("go.set(); end.wait(10);")
    assert [frame["data"]["text/plain"] for frame in cell.of("display")] == ["'late'"]


def test_a_small_display_after_a_display_that_is_too_large_is_shown(worker: WorkerProcess) -> None:
    code = "from IPython.display import HTML\ndisplay(HTML('x' * 30_000_000))\ndisplay('small')"
    cell = worker.run(f"{code}\n'result'")
    texts = [frame["data"]["text/plain"] for frame in cell.of("display")]
    assert "omitted" in texts[0]
    assert texts[1:] == ["'small'"]
    assert cell.text == "'result'"


def test_the_notes_of_too_large_displays_are_bounded(worker: WorkerProcess) -> None:
    cell = worker.run(
        "from IPython.display import HTML\nblob = HTML('x' * 30_000_000)\n"
        "for _ in range(3): display(blob, display_id='n' * 500_000)"
    )
    *notes, last = cell.of("display")
    assert ["omitted" in note["data"]["text/plain"] for note in notes] == [True, True]
    assert last["data"]["text/plain"] == "[1 more displays omitted]"
