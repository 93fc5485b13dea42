"""Plots are well-formed, put things where they belong, and say what they show."""

import re
from xml.etree import ElementTree

import pytest

from ms_eagle.pages import plot as svg_plot
from ms_eagle.pages.plot import HEIGHT, WIDTH, Frame, Marker, Series

TEXT = "{http://www.w3.org/2000/svg}text"


def parsed(plot):
    return ElementTree.fromstring(plot)


def tagged(plot, tag):
    return [e for e in parsed(plot).iter() if e.tag.endswith(tag)]


def words(plot):
    return [e.text for e in tagged(plot, "}text")]


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 37, [0, 10, 20, 30]),
        (0.93, 2.41, [1.0, 1.5, 2.0]),
        (-2, 3, [-2, -1, 0, 1, 2, 3]),
        (5, 5, []),
    ],
)
def test_ticks_are_round_and_inside(low, high, found):
    got = svg_plot.ticks(low, high)
    if found:
        assert got == pytest.approx(found)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in got)


def test_a_frame_maps_its_ranges_to_its_corners():
    frame = Frame((1, 3), (0, 10), top=20)
    assert frame.x(1) < frame.x(2) < frame.x(3)
    assert frame.y(0) > frame.y(5) > frame.y(10) == 20
    assert frame.x(2) == pytest.approx((frame.x(1) + frame.x(3)) / 2)
    doubled = Frame((64, 1024), (0, 1), log_x=True)
    gaps = [doubled.x(2 * x) - doubled.x(x) for x in (64, 128, 512)]
    assert gaps == pytest.approx([gaps[0]] * 3)


def test_a_histogram_has_a_column_a_bin_and_warns_below():
    counts = [(0.8, 0.9, 2), (0.9, 1.0, 0), (1.0, 1.1, 5), (1.1, 1.2, 1)]
    plot = svg_plot.histogram("name", counts, "speed-up", [Marker(1.05, "p50 1.05x")], below=1.0)
    bars = [e for e in tagged(plot, "}rect")]
    assert [e.get("class") for e in bars] == ["bar warn", "bar warn", "bar good", "bar good"]
    heights = [float(e.get("height")) for e in bars]
    assert heights == pytest.approx([2 * heights[3], 0, 5 * heights[3], heights[3]], abs=0.11)
    assert bars[0][0].text == "0.8 to 0.9: 2 turns"
    assert "p50 1.05x" in words(plot)
    assert {"0", "1", "2"} <= set(words(plot))
    assert not {"0.5", "1.5"} & {e.text for e in tagged(plot, "}text") if e.get("text-anchor") == "end"}


def test_labels_of_markers_do_not_lie_on_each_other():
    marks = [Marker(1 + i / 100, f"p{i} of the turns") for i in range(6)] + [Marker(1.99, "a long label")]
    plot = svg_plot.histogram("name", [(1.0, 1.5, 1), (1.5, 2.0, 1)], "x", marks)
    boxes = []
    for e in tagged(plot, "}text"):
        if e.get("class", "").startswith("label"):
            half = 3.3 * len(e.text)
            boxes.append((float(e.get("x")) - half, float(e.get("x")) + half, float(e.get("y"))))
    assert len(boxes) == len(marks)
    for i, (left, right, y) in enumerate(boxes):
        assert left >= 0 and right <= WIDTH  # noqa: PT018 (one place)
        for other in boxes[i + 1 :]:
            assert other[2] != y or other[0] >= right or other[1] <= left


def test_lines_have_points_whiskers_and_a_legend_only_for_several():
    one = Series("a <b>", [(1, 1.0), (2, 2.0)], [0.5, 1.5], [1.5, 2.5])
    alone = svg_plot.lines("n", [one], "x", "y")
    assert len(tagged(alone, "}circle")) == 2
    assert len(re.findall('class="whisker', alone)) == 2
    assert "a <b>" not in words(alone)
    both = svg_plot.lines("n", [one, Series("c", [(1, 1.0)])], "x", "y", reference=(1.0, "as the teacher"))
    assert {"a <b>", "c", "as the teacher"} <= set(words(both))
    assert parsed(svg_plot.lines("n", [Series("one point", [(3, 1.0)])], "x", "y")) is not None


def test_bars_are_as_long_as_their_values():
    plot = svg_plot.bars(
        "n", [("a", 2.0, "good", "w"), ("bb", 4.0, "warn", "w"), ("c", 0.0, "calm", "w")], "ms"
    )
    widths = [float(e.get("width")) for e in tagged(plot, "}rect")]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.11)
    assert {"a", "bb", "2 ms", "4 ms", "0 ms"} <= set(words(plot))


def test_scatter_and_columns_are_well_formed():
    dots = [(1.0, 2.0, "t & u"), (3.0, 0.5, "v")]
    plot = svg_plot.scatter("n", [("x", dots), ("y", dots[:1])], "a", "b", (1.0, "r"))
    assert len([e for e in tagged(plot, "}circle") if len(e)]) == 3
    assert parsed(svg_plot.columns("n", [("0", 0.5, "w"), ("1", 0.0, "w")], "a", "b")) is not None


def test_a_plot_as_a_file_brings_its_colours_for_light_and_dark():
    plot = svg_plot.standalone(svg_plot.columns("n", [("0", 0.5, "w")], "a", "b"))
    root = parsed(plot)
    assert root[0].tag.endswith("}style")
    assert "prefers-color-scheme: dark" in root[0].text
    assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
