"""Draw the chart of the README, light and dark: `python docs/images/chart.py`.

The figures are those of the table under "Measurements"; change both together.
"""

from __future__ import annotations

from pathlib import Path

PANELS = (
    (
        "Words wrong, four languages in a recording",
        (("sottovoce", 15.4, "15.4 %"), ("faster-whisper", 45.0, "45.0 %")),
    ),
    (
        "Times real time, on one thread of a CPU",
        (("sottovoce", 19.8, "19.8"), ("faster-whisper, int8", 9.0, "9.0"), ("openai-whisper", 1.7, "1.7")),
    ),
)
COLOURS = {
    "light": {"text": "#1f2328", "dim": "#59636e", "first": "#1668dc", "other": "#afb8c1"},
    "dark": {"text": "#f0f6fc", "dim": "#9198a1", "first": "#4c9aff", "other": "#4b535d"},
}
WIDTH, PANEL_WIDTH, ROW = 860, 410, 34
NAME_WIDTH, BAR_WIDTH = 140, 200


def chart(colours: dict[str, str]) -> str:
    height = 52 + ROW * max(len(rows) for _, rows in PANELS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="-apple-system, Segoe UI, Helvetica, sans-serif" font-size="14">'
    ]
    for number, (title, rows) in enumerate(PANELS):
        left = number * (WIDTH - PANEL_WIDTH)
        largest = max(value for _, value, _ in rows)
        parts.append(f'<text x="{left}" y="20" fill="{colours["text"]}" font-weight="600">{title}</text>')
        for row, (name, value, shown) in enumerate(rows):
            y, is_first = 38 + row * ROW, row == 0
            bar, weight = BAR_WIDTH * value / largest, 600 if is_first else 400
            ink, fill = colours["text" if is_first else "dim"], colours["first" if is_first else "other"]
            parts += [
                f'<text x="{left}" y="{y + 17}" fill="{ink}" font-weight="{weight}">{name}</text>',
                f'<rect x="{left + NAME_WIDTH}" y="{y}" width="{bar:.1f}" height="24" rx="3" fill="{fill}"/>',
                f'<text x="{left + NAME_WIDTH + bar + 8:.1f}" y="{y + 17}" fill="{ink}" '
                f'font-weight="{weight}">{shown}</text>',
            ]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    for scheme, colours in COLOURS.items():
        Path(__file__).with_name(f"chart-{scheme}.svg").write_text(chart(colours), encoding="utf-8")


if __name__ == "__main__":
    main()
