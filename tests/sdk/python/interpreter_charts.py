"""Charts of every type, as the SDK's own classes."""

from harness.cases import case
from kit import go

PLOTS = "import matplotlib.pyplot as plt, numpy as np, datetime\n"


async def chart_of(sandbox, code):
    """The only chart of a cell, parsed by the SDK."""
    results = (await go(sandbox.run_code(PLOTS + code + "\nplt.show()"))).results
    charts = [result.chart for result in results if result.chart]
    assert len(charts) == 1, results
    return charts[0]


@case("charts", core=True)
async def a_line_chart(sdk):
    async with sdk.sandbox() as sandbox:
        code = "plt.plot([1, 2], [3, 4], label='a'); plt.title('T'); plt.xlabel('Time (s)'); plt.ylabel('U [mV]')"
        chart = await chart_of(sandbox, code)
    assert (type(chart).__name__, chart.type.value, chart.title) == ("LineChart", "line", "T")
    assert (chart.x_label, chart.x_unit, chart.y_unit) == ("Time (s)", "s", "mV")
    assert chart.elements[0].label == "a" and chart.elements[0].points == [(1, 3), (2, 4)]
    assert chart.x_scale.value == "linear" and len(chart.x_ticks) == len(chart.x_tick_labels)


@case("charts")
async def scales_are_named(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "plt.plot([1, 10], [1, 10]); plt.xscale('log'); plt.yscale('symlog')")
        assert (chart.x_scale.value, chart.y_scale.value) == ("log", "symlog")
        chart = await chart_of(sandbox, "plt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, 2])")
        assert chart.x_scale.value == "datetime" and chart.elements[0].points[0] == ("2024-01-01", 1)
        chart = await chart_of(sandbox, "plt.plot(['a', 'b'], [1, 2])")
        assert chart.x_scale.value == "categorical" and chart.elements[0].points[1] == ("b", 2)


@case("charts", core=True)
async def a_scatter_chart(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "plt.scatter([1, 2], [3, 4], label='s')")
    assert type(chart).__name__ == "ScatterChart"
    assert chart.elements[0].label == "s" and chart.elements[0].points == [(1, 3), (2, 4)]


@case("charts", core=True)
async def a_bar_chart(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "plt.bar(['a', 'b'], [3, 4], label='g'); plt.ylabel('Mass (kg)')")
    assert type(chart).__name__ == "BarChart" and chart.y_unit == "kg"
    assert [(bar.label, bar.group, bar.value) for bar in chart.elements] == [("a", "g", 3), ("b", "g", 4)]


@case("charts", core=True)
async def a_pie_chart(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "plt.pie([1, 3], labels=['a', 'b'])")
    assert type(chart).__name__ == "PieChart"
    assert [(part.label, part.angle, part.radius) for part in chart.elements] == [("a", 90, 1), ("b", 270, 1)]


@case("charts", core=True)
async def a_box_and_whisker_chart(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['p'])")
    assert type(chart).__name__ == "BoxAndWhiskerChart"
    box = chart.elements[0]
    assert (box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max) == ("p", 1, 2, 3, 4, 4)
    assert box.outliers == [50]


@case("charts", core=True)
async def a_superchart(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "f, a = plt.subplots(1, 2); a[0].plot([1]); a[1].bar(['x'], [1]); f.suptitle('S')")
    assert type(chart).__name__ == "SuperChart" and chart.title == "S"
    assert [type(element).__name__ for element in chart.elements] == ["LineChart", "BarChart"]


@case("charts")
async def what_has_no_type_is_unknown(sdk):
    async with sdk.sandbox() as sandbox:
        chart = await chart_of(sandbox, "plt.imshow([[1, 2], [3, 4]]); plt.title('I')")
    assert (chart.type.value, chart.title, chart.elements) == ("unknown", "I", [])
