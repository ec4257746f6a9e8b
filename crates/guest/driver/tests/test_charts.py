"""Figures: shown as in a notebook, and converted to E2B's charts."""

import base64
import unittest

from support import KernelCase

POINT_KEYS = {
    "type", "title", "elements", "x_label", "y_label", "x_unit", "y_unit",
    "x_ticks", "x_tick_labels", "x_scale", "y_ticks", "y_tick_labels", "y_scale",
}  # fmt: skip
PLANAR_KEYS = {"type", "title", "elements", "x_label", "y_label", "x_unit", "y_unit"}


class ChartCase(KernelCase):
    warm = "full"

    def setUp(self):
        super().setUp()
        self.run_ok("import matplotlib.pyplot as plt, numpy as np, datetime")

    def figure(self, code):
        cell = self.run_ok(code + ";")
        self.assertEqual(len(cell.results), 1, code)
        self.assertFalse(cell.results[0]["is_main_result"])
        self.assertTrue(base64.b64decode(cell.results[0]["png"]).startswith(b"\x89PNG"))
        return cell.results[0]

    def chart(self, code):
        return self.figure(code)["chart"]


class Showing(ChartCase):
    def test_a_figure_is_shown_at_the_end_of_its_cell_once(self):
        self.figure("plt.plot([1, 2])")
        self.assertEqual(self.run_ok("1").results[0]["text"], "1")
        self.assertEqual(len(self.run_ok("1").results), 1)

    def test_show_shows_at_once_and_closes(self):
        cell = self.run_ok("plt.plot([1, 2])\nplt.show()\nprint('after')")
        self.assertEqual(cell.order, ["number_of_executions", "result", "stdout", "end_of_execution"])

    def test_several_figures_are_several_results(self):
        self.assertEqual(len(self.run_ok("for _ in range(3): plt.figure(); plt.plot([1])").results), 3)

    def test_saving_a_figure_shows_it_only_once(self):
        self.figure("import tempfile\nplt.plot([1]); plt.savefig(tempfile.mkdtemp() + '/f.png')")

    def test_matplotlib_inline_is_accepted(self):
        self.assertEqual(self.run_ok("%matplotlib inline").results, [])
        self.figure("plt.plot([1])")

    def test_the_format_can_be_configured(self):
        self.run_ok("%config InlineBackend.figure_format = 'svg'")
        self.assertIn("<svg", self.run_ok("plt.plot([1]);").results[0]["svg"])

    def test_a_figure_is_shown_although_the_cell_fails(self):
        cell = self.kernel.run("plt.plot([1])\n1 / 0")
        self.assertEqual((len(cell.results), cell.error["name"]), (1, "ZeroDivisionError"))

    def test_a_blank_figure_has_no_chart(self):
        self.assertNotIn("chart", self.run_ok("plt.figure();").results[0])

    def test_another_backend_is_left_alone(self):
        self.assertEqual(self.run_ok("import matplotlib; matplotlib.use('agg'); plt.plot([1]);").results, [])


class Lines(ChartCase):
    def test_a_line_has_every_key_and_its_units(self):
        chart = self.chart("plt.plot([1, 2], [3, 4]); plt.title('T'); plt.xlabel('Time (s)'); plt.ylabel('U [mV]')")
        self.assertEqual(set(chart), POINT_KEYS)
        self.assertEqual((chart["type"], chart["title"]), ("line", "T"))
        self.assertEqual((chart["x_unit"], chart["y_unit"], chart["x_scale"]), ("s", "mV", "linear"))
        self.assertEqual(chart["elements"], [{"label": "Line 0", "points": [[1, 3], [2, 4]]}])
        self.assertEqual(len(chart["x_ticks"]), len(chart["x_tick_labels"]))

    def test_labels_of_lines_are_kept(self):
        chart = self.chart("plt.plot([1], label='a'); plt.plot([2], label='b'); plt.legend()")
        self.assertEqual([element["label"] for element in chart["elements"]], ["a", "b"])

    def test_missing_points_are_null(self):
        chart = self.chart("plt.plot([1, 2], [3, float('nan')])")
        self.assertEqual(chart["elements"][0]["points"], [[1, 3], [2, None]])

    def test_logarithmic_scales_are_named(self):
        chart = self.chart("plt.plot([1, 10], [1, 10]); plt.xscale('log'); plt.yscale('symlog')")
        self.assertEqual((chart["x_scale"], chart["y_scale"]), ("log", "symlog"))

    def test_dates_are_iso_text(self):
        chart = self.chart("plt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)], [1, 2])")
        self.assertEqual(chart["x_scale"], "datetime")
        self.assertEqual([point[0] for point in chart["elements"][0]["points"]], ["2024-01-01", "2024-01-03"])
        self.assertTrue(all(isinstance(tick, str) for tick in chart["x_ticks"]))

    def test_a_pandas_series_of_dates_is_a_line(self):
        chart = self.chart("import pandas as pd\nplt.plot(pd.Series([1, 2], index=pd.date_range('2024', periods=2)))")
        self.assertEqual((chart["type"], chart["x_scale"]), ("line", "datetime"))
        self.assertTrue(chart["elements"][0]["points"][0][0].startswith("2024-01-01"))

    def test_names_are_categories(self):
        chart = self.chart("plt.plot(['a', 'b'], [1, 2])")
        self.assertEqual(chart["x_scale"], "categorical")
        self.assertEqual(chart["elements"][0]["points"], [["a", 1], ["b", 2]])
        self.assertEqual(chart["x_tick_labels"], ["a", "b"])

    def test_a_band_around_a_line_is_only_decoration(self):
        self.assertEqual(self.chart("plt.plot([1, 2]); plt.fill_between([0, 1], [0, 1], [1, 2])")["type"], "line")

    def test_a_huge_line_is_a_picture_with_a_note(self):
        result = self.figure("plt.plot(np.zeros(300_000))")
        self.assertNotIn("chart", result)
        self.assertIn("300000", result["extra"]["isopod/left-out"]["e2b/chart"])


class Points(ChartCase):
    def test_a_scatter(self):
        chart = self.chart("plt.scatter([1, 2], [3, 4], label='s'); plt.scatter([5], [6])")
        self.assertEqual(set(chart), POINT_KEYS)
        self.assertEqual(chart["type"], "scatter")
        self.assertEqual(chart["elements"][0], {"label": "s", "points": [[1, 3], [2, 4]]})

    def test_a_scatter_of_names_and_of_dates(self):
        chart = self.chart("plt.scatter(['x', 'y'], [1, 2])")
        self.assertEqual(chart["elements"][0]["points"], [["x", 1], ["y", 2]])
        chart = self.chart("plt.scatter([datetime.datetime(2024, 1, 1)], [1])")
        self.assertTrue(chart["elements"][0]["points"][0][0].startswith("2024-01-01"))

    def test_a_colour_bar_is_not_a_chart(self):
        self.assertEqual(self.chart("plt.scatter([1, 2], [3, 4], c=[1, 2]); plt.colorbar()")["type"], "scatter")


class Bars(ChartCase):
    def test_bars_with_names(self):
        chart = self.chart("plt.bar(['a', 'b'], [3, 4.5]); plt.ylabel('Mass (kg)')")
        self.assertEqual(set(chart), PLANAR_KEYS)
        self.assertEqual(chart["elements"], [
            {"label": "a", "group": "Group 0", "value": 3}, {"label": "b", "group": "Group 0", "value": 4.5}])  # fmt: skip
        self.assertEqual(chart["y_unit"], "kg")

    def test_horizontal_bars_are_described_as_vertical(self):
        chart = self.chart("plt.barh(['a', 'b'], [3, 4]); plt.xlabel('Mass (kg)')")
        self.assertEqual([(e["label"], e["value"]) for e in chart["elements"]], [("a", 3), ("b", 4)])
        self.assertEqual((chart["x_label"], chart["y_label"]), (None, "Mass (kg)"))

    def test_grouped_bars_share_their_tick(self):
        chart = self.chart(
            "x = np.arange(2); plt.bar(x - .2, [1, 2], .4, label='m'); plt.bar(x + .2, [3, 4], .4, label='w');"
            "plt.xticks(x, ['A', 'B'])"
        )
        self.assertEqual(
            [(e["label"], e["group"], e["value"]) for e in chart["elements"]],
            [("A", "m", 1), ("B", "m", 2), ("A", "w", 3), ("B", "w", 4)],
        )

    def test_a_histogram_and_numbers_are_bars(self):
        self.assertEqual([e["value"] for e in self.chart("plt.hist([1, 1, 2], bins=2)")["elements"]], [2, 1])
        self.assertEqual([e["label"] for e in self.chart("plt.bar([1, 2], [3, 4])")["elements"]], ["1", "2"])

    def test_one_bar_is_upright(self):
        self.assertEqual(self.chart("plt.bar(['a'], [1])")["elements"], [{"label": "a", "group": "Group 0", "value": 1}])


class PiesAndBoxes(ChartCase):
    def test_a_pie(self):
        chart = self.chart("plt.pie([1, 2, 3], labels=['a', 'b', 'c'], autopct='%d'); plt.title('P')")
        self.assertEqual(set(chart), {"type", "title", "elements"})
        self.assertEqual(chart["elements"][1], {"label": "b", "angle": 120.0, "radius": 1.0})

    def test_boxes_by_every_way_of_drawing_them(self):
        ways = (
            "plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['p'])",
            "plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['p'], patch_artist=True)",
            "import seaborn as sns; sns.boxplot({'p': [1, 2, 3, 4, 50]})",
            "import pandas as pd; pd.DataFrame({'p': [1, 2, 3, 4, 50]}).boxplot()",
        )
        for way in ways:
            chart = self.chart(way)
            self.assertEqual(set(chart), PLANAR_KEYS, way)
            self.assertEqual(chart["type"], "box_and_whisker", way)
            expected = {"label": "p", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [50]}
            self.assertEqual(chart["elements"], [expected], way)

    def test_cleared_axes_forget_their_boxes(self):
        self.assertEqual(self.chart("plt.boxplot([1, 2]); plt.cla(); plt.plot([1, 2])")["type"], "line")


class Others(ChartCase):
    def test_several_axes_are_a_superchart(self):
        chart = self.chart("f, a = plt.subplots(1, 2); a[0].plot([1]); a[1].bar(['x'], [1]); f.suptitle('S')")
        self.assertEqual((chart["type"], chart["title"]), ("superchart", "S"))
        self.assertEqual([element["type"] for element in chart["elements"]], ["line", "bar"])

    def test_what_has_no_type_is_unknown(self):
        for code in ("plt.imshow([[1, 2]])", "plt.contour([[1, 2], [3, 4]])", "plt.plot([1]); plt.scatter([1], [1])"):
            self.assertEqual(self.chart(code), {"type": "unknown", "title": None, "elements": []}, code)

    def test_seaborn_draws_what_matplotlib_knows(self):
        self.run_ok("import seaborn as sns, pandas as pd\nd = pd.DataFrame({'a': [1, 2], 'b': [3, 4]})")
        self.assertEqual(self.chart("sns.lineplot(d, x='a', y='b')")["type"], "line")
        self.assertEqual(self.chart("sns.scatterplot(d, x='a', y='b')")["type"], "scatter")
        self.assertEqual(self.chart("sns.barplot(d, x='a', y='b')")["type"], "bar")

    def test_pandas_plots_too(self):
        self.run_ok("import pandas as pd\nd = pd.DataFrame({'a': [1, 2], 'b': [3, 4]})")
        self.assertEqual([e["label"] for e in self.chart("d.plot()")["elements"]], ["a", "b"])
        self.assertEqual(len(self.chart("d.plot.bar()")["elements"]), 4)


class Unwarmed(KernelCase):
    """User code is the first to import matplotlib and PIL."""

    def test_the_first_import_already_shows_figures(self):
        cell = self.run_ok("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
        self.assertEqual(cell.results[0]["chart"]["type"], "line")

    def test_the_backend_does_not_leak_to_children(self):
        self.run_ok("import matplotlib.pyplot, sys, subprocess")
        cell = self.run_ok("subprocess.check_output([sys.executable, '-c', 'import matplotlib; print(matplotlib.get_backend())'], text=True).strip().lower()")
        self.assertEqual(cell.text, "agg")

    def test_a_saved_image_is_shown(self):
        self.assertEqual(len(self.run_ok("from PIL import Image\nImage.new('L', (1, 1)).save('/dev/null', 'png')").results), 1)


if __name__ == "__main__":
    unittest.main()
