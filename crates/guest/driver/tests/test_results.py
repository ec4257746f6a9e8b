"""Results on the wire: MIME types, tables, images, size limits."""

import base64
import unittest

from support import KernelCase

MIB = 1024 * 1024


class Forms(KernelCase):
    def test_every_mime_type_has_its_field(self):
        cases = {
            "HTML('<b>')": ("html", "<b>"),
            "Markdown('*m*')": ("markdown", "*m*"),
            "SVG('<svg/>')": ("svg", "<svg/>"),
            "Latex('$x$')": ("latex", "$x$"),
            "JSON({'a': 1})": ("json", {"a": 1}),
            "Javascript('1')": ("javascript", "1"),
        }
        self.run_ok("from IPython.display import *")
        for code, (field, value) in cases.items():
            self.assertEqual(self.run_ok(code).main[field], value, code)

    def test_bytes_are_base64(self):
        code = "class P:\n    def _repr_png_(self): return b'png'\n    def _repr_jpeg_(self): return b'jpg'\n    def _repr_pdf_(self): return b'pdf'\nP()"
        main = self.run_ok(code).main
        self.assertEqual([base64.b64decode(main[field]) for field in ("png", "jpeg", "pdf")], [b"png", b"jpg", b"pdf"])

    def test_other_types_are_extra(self):
        code = "display({'application/x-own': {'k': [1]}, 'text/plain': 't'}, raw=True)"
        result = self.run_ok(code).results[0]
        self.assertEqual((result["extra"], result["text"]), ({"application/x-own": {"k": [1]}}, "t"))

    def test_lists_and_dicts_are_json_too(self):
        self.assertEqual(self.run_ok("[1, 'a', None, 2.5]").main["json"], [1, "a", None, 2.5])
        self.assertEqual(self.run_ok("{'a': {'b': (1, 2)}, 3: True}").main["json"], {"a": {"b": [1, 2]}, "3": True})

    def test_values_that_json_cannot_hold_are_only_text(self):
        self.assertNotIn("json", self.run_ok("[object]").main)
        self.assertEqual(self.run_ok("[float('nan'), float('inf'), 1]").main["json"], [None, None, 1])

    def test_a_list_that_contains_itself_is_text(self):
        main = self.run_ok("x = [1]; x.append(x); x").main
        self.assertEqual(main["text"], "[1, [...]]")
        self.assertNotIn("json", main)

    def test_an_object_that_cannot_be_shown_does_not_end_the_kernel(self):
        self.kernel.run("class B:\n    def __repr__(self): raise RuntimeError('no repr')\nB()")
        self.assertEqual(self.run_ok("1").text, "1")

    def test_an_update_of_a_display_is_another_result(self):
        cell = self.run_ok("h = display('one', display_id=True)\nh.update('two')")
        self.assertEqual([result["text"] for result in cell.results], ["one", "two"])


class Bounds(KernelCase):
    def test_huge_text_is_truncated_with_a_marker(self):
        text = self.run_ok("'x' * (11 * 1024 * 1024)").text
        self.assertTrue(text.endswith("\u2026 (truncated: %d bytes)" % MIB), text[-60:])
        self.assertEqual(text[: 10 * MIB], "x" * (10 * MIB))

    def test_truncation_never_splits_a_character(self):
        text = self.run_ok("'\\u20ac' * (4 * 1024 * 1024)").text
        self.assertEqual(set(text.split("\u2026")[0]), {"\u20ac"})

    def test_a_huge_image_is_omitted_with_a_note(self):
        code = "class P:\n    def _repr_png_(self): return b'x' * (9 * 1024 * 1024)\nP()"
        main = self.run_ok(code).main
        self.assertNotIn("png", main)
        self.assertIn("limit", main["extra"]["isopod/left-out"]["image/png"])

    def test_a_huge_list_is_text_with_a_note(self):
        main = self.run_ok("list(range(600_000))").main
        self.assertIn("application/json", main["extra"]["isopod/left-out"])

    def test_a_huge_error_is_truncated(self):
        error = self.kernel.run("raise ValueError('x' * (11 * 1024 * 1024))").error
        self.assertLess(len(error["value"]), 10 * MIB + 100)


class Packages(KernelCase):
    warm = "full"

    def test_a_table_has_html_text_and_columns(self):
        main = self.run_ok("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})").main
        self.assertEqual(main["data"], {"a": [1, 2], "b": ["x", None]})
        self.assertIn("<table", main["html"])
        self.assertIn("a", main["text"])

    def test_times_are_iso_and_missing_values_null(self):
        code = (
            "import pandas as pd\n"
            "pd.DataFrame({'t': [pd.Timestamp('2024-01-02 03:04:05'), pd.NaT], 'n': [1.5, float('nan')], 1: [True, False]})"
        )
        data = self.run_ok(code).main["data"]
        self.assertEqual(data, {"t": ["2024-01-02T03:04:05", None], "n": [1.5, None], "1": [True, False]})

    def test_an_index_of_times_does_not_matter(self):
        code = "import pandas as pd\npd.DataFrame({'v': [1, 2]}, index=pd.date_range('2024', periods=2))"
        self.assertEqual(self.run_ok(code).main["data"], {"v": [1, 2]})

    def test_cells_that_json_cannot_hold_are_text(self):
        data = self.run_ok("import pandas as pd\npd.DataFrame({'c': [1 + 2j], 's': [{1}]})").main["data"]
        self.assertEqual(data, {"c": ["(1+2j)"], "s": ["{1}"]})

    def test_a_huge_table_is_omitted_with_a_note(self):
        main = self.run_ok("import pandas as pd\npd.DataFrame({'a': range(600_000)})").main
        self.assertNotIn("data", main)
        self.assertIn("600000", main["extra"]["isopod/left-out"]["e2b/data"])

    def test_an_image_is_shown_and_so_is_a_saved_one(self):
        self.run_ok("from PIL import Image\nimage = Image.new('RGB', (2, 2))")
        self.assertTrue(base64.b64decode(self.run_ok("image").main["png"]).startswith(b"\x89PNG"))
        saved = self.run_ok("import tempfile, os\nimage.save(os.path.join(tempfile.mkdtemp(), 'i.png'))")
        self.assertEqual([result["is_main_result"] for result in saved.results], [False])
        self.assertEqual(len(self.run_ok("image.show()").results), 1)

    def test_saving_to_a_buffer_shows_nothing(self):
        self.assertEqual(self.run_ok("from PIL import Image\nimport io\nImage.new('L', (1, 1)).save(io.BytesIO(), 'png')").results, [])

    def test_a_plotly_figure_is_html_and_its_own_json(self):
        main = self.run_ok("import plotly.graph_objects as go\nfigure = go.Figure(go.Bar(x=[1], y=[2]))\nfigure").main
        self.assertEqual(main["extra"]["application/vnd.plotly.v1+json"]["data"][0]["type"], "bar")
        self.assertIn("plotly", main["html"])
        self.assertEqual(len(self.run_ok("figure.show()").results), 1)

    def test_sympy_gives_latex(self):
        main = self.run_ok("import sympy\nsympy.init_printing()\nsympy.Symbol('x') ** 2").main
        self.assertIn("x^{2}", main["latex"])

    def test_numbers_use_several_threads_again_after_a_cell(self):
        self.run_ok("import numpy as np\na = np.ones((300, 300)); (a @ a).sum()")
        self.assertEqual(self.run_ok("(a @ a)[0, 0] == 300").text, "np.True_")


if __name__ == "__main__":
    unittest.main()
