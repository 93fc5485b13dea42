"""Plots are well-formed, put things where they belong, and say what they show."""

from xml.etree import ElementTree

import pytest
from markupsafe import escape

from ms_eagle.pages import plot as plots
from ms_eagle.pages.axes import HEIGHT, WIDTH, Frame, Marker, short, ticks
from ms_eagle.pages.plot import Series

BARS = [(1.0, 1.5, 1, "good", "w"), (1.5, 2.0, 1, "good", "w")]


def parsed(plot):
    return ElementTree.fromstring(plot if isinstance(plot, str) else plot.__html__())


def tagged(plot, tag):
    return [e for e in parsed(plot).iter() if e.tag.endswith(tag)]


def words(plot):
    return [e.text for e in tagged(plot, "}text")]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 37, [0, 10, 20, 30]),
        (0.93, 2.41, [1.0, 1.5, 2.0]),
        (-2, 3, [-2, -1, 0, 1, 2, 3]),
        (5, 5, []),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    found = ticks(low, high)
    if expected:
        assert found == pytest.approx(expected)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_numbers_of_ticks_are_short():
    values = (0, 0.1 + 0.2, 1e-12, 4e-4, -2.5e-5, 1500, 0.001)
    assert [short(value) for value in values] == ["0", "0.3", "0", "4e-4", "-2.5e-5", "1500", "0.001"]


def test_a_frame_maps_its_ranges_to_its_corners():
    frame = Frame((1, 3), (0, 10), top=20)
    assert frame.x(1) < frame.x(2) < frame.x(3)
    assert frame.y(0) > frame.y(5) > frame.y(10) == 20
    assert frame.x(2) == pytest.approx((frame.x(1) + frame.x(3)) / 2)
    doubled = Frame((64, 1024), (0, 1), log_x=True)
    gaps = [doubled.x(2 * x) - doubled.x(x) for x in (64, 128, 512)]
    assert gaps == pytest.approx([gaps[0]] * 3)


def test_columns_are_as_high_as_their_values():
    counts = [(0.8, 0.9, 2), (0.9, 1.0, 0), (1.0, 1.1, 5), (1.1, 1.2, 1)]
    values = [(*each, "warn" if each[1] <= 1 else "good", f"{each[2]} turns") for each in counts]
    plot = plots.columns("name", values, "speed-up", "turns", markers=[Marker(1.05, "p50 1.05x")], whole=True)
    bars = tagged(plot, "}rect")
    assert [e.get("class") for e in bars] == ["bar warn", "bar warn", "bar good", "bar good"]
    heights = [float(e.get("height")) for e in bars]
    assert heights == pytest.approx([2 * heights[3], 0, 5 * heights[3], heights[3]], abs=0.11)
    assert bars[0][0].text == "2 turns"
    assert "p50 1.05x" in words(plot)
    assert {"0", "1", "2"} <= set(words(plot))
    assert not {"0.5", "1.5"} & {e.text for e in tagged(plot, "}text") if e.get("text-anchor") == "end"}


def test_labels_of_markers_do_not_lie_on_each_other():
    marks = [Marker(1 + i / 100, f"p{i} of the turns") for i in range(6)] + [Marker(1.99, "a long label")]
    plot = plots.columns("name", BARS, "x", "y", markers=marks)
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
    alone = plots.lines("n", [one], "x", "y")
    assert len(tagged(alone, "}circle")) == 2
    assert len([e for e in tagged(alone, "}path") if e.get("class").startswith("whisker")]) == 2
    assert "a <b>" not in words(alone)
    both = plots.lines("n", [one, Series("c", [(1, 1.0)])], "x", "y", reference=(1.0, "as the teacher"))
    assert {"a <b>", "c", "as the teacher"} <= set(words(both))
    assert parsed(plots.lines("n", [Series("one point", [(3, 1.0)])], "x", "y")) is not None


def test_a_long_line_is_drawn_without_dots_and_inside_its_range():
    series = [Series("each step", [(i, 1 / (1 + i)) for i in range(50)], dots=False, faint=True)]
    plot = plots.lines("n", series, "steps", "loss", y=(0.0, 1.0), markers=[Marker(49, "the best <one>")])
    assert tagged(plot, "}circle") == []
    (line,) = [e for e in tagged(plot, "}path") if e.get("class").startswith("line")]
    points = [tuple(map(float, pair.split())) for pair in line.get("d")[1:].split("L")]
    assert len(points) == 50
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert "the best <one>" in words(plot)
    assert parsed(plots.lines("nothing yet", [Series("a", [])], "x", "y")) is not None


def test_dots_have_a_note_each_and_no_line():
    dots = Series("x", [(1.0, 2.0), (3.0, 0.5)], notes=["t & u", "v"], line=False)
    plot = plots.lines("n", [dots], "a", "b", from_zero=True, reference=(1.0, "r"))
    assert [e[0].text for e in tagged(plot, "}circle")] == ["t & u", "v"]
    assert not [e for e in tagged(plot, "}path") if e.get("class").startswith("line")]
    assert "0" in words(plot)


def test_text_is_escaped_wherever_a_plot_says_it():
    evil = "<script>alert(1)</script>\"'&\x00"
    series = [Series(evil, [(1, 1.0)], notes=[evil])] * 2
    drawn = [
        plots.columns(evil, [(1.0, 1.5, 1, evil, evil)], evil, evil, markers=[Marker(1.2, evil)]),
        plots.lines(evil, series, evil, evil, reference=(1.0, evil)),
    ]
    for plot in [*drawn, plots.sheet(evil, drawn)]:
        assert "script" not in {e.tag.rpartition("}")[2] for e in parsed(plot).iter()}
        assert "<script" not in escape(plot)
        assert evil.replace("\x00", "�") in [parsed(plot).get("aria-label"), *words(plot)]


def test_a_plot_as_a_file_brings_its_colours_for_light_and_dark():
    plot = plots.standalone(plots.columns("n", BARS, "a", "b"))
    root = parsed(plot)
    assert root[0].tag.endswith("}style")
    assert "prefers-color-scheme: dark" in root[0].text
    assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"


def test_a_sheet_holds_its_plots_side_by_side():
    plot = plots.columns("one", BARS, "a", "b")
    root = parsed(plots.sheet("all", [plot] * 3))
    places = [e.get("transform") for e in root if e.tag.endswith("}g")]
    assert len(set(places)) == 3
    assert words(plots.sheet("all", [plot] * 3)).count("one") == 3
    _, _, width, height = map(float, root.get("viewBox").split())
    assert width > 2 * WIDTH
    assert height > 2 * HEIGHT
