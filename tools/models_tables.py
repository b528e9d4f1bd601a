"""The tables of docs/models.md, from what tools/models_check.py found."""

from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "models.md"


def documented():
    """The rows of the tables in the document, by their first cell."""
    table = DOCUMENT.read_text().split("<!-- models-check -->\n")[1].split("<!-- end of models-check -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {(len(row), row[0]): row for row in rows}


def write(records, networks, update):
    """Markdown: networks of the zoo with other programs, then models of Keras. What this run has not reached stays as it is.
    With `update`, also in the document."""
    by_check, old = {}, documented()
    for record in records:
        by_check.setdefault(record["check"], {})[record["name"]] = record

    def short(difference):
        return "failed" if difference is None else f"{difference:.0e}".replace("e-0", "e-")

    def cell(check, name, before):
        found = by_check.get(check, {}).get(name)
        return short(found["difference"]) if found else before

    def library(model):
        adjusted = model[model.index(" ("):] if " (" in model else ""
        return model.split()[0] + adjusted

    lines = ["| network | ONNX Runtime | Keras | weights of |", "|---|---|---|---|"]
    foreign = by_check.get("safetensors-in", {})
    for name in networks:
        title = f"`{name}`"
        before = old.get((4, title), [title, "–", "–", "–"])
        weights = [f"{library(model)} {short(found['difference'])}" for model, found in foreign.items() if found["note"] == name]
        cells = [title, cell("onnx-out", name, before[1]), cell("keras-out", name, before[2]), ", ".join(weights) or before[3]]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| model of Keras | predictions | losses of 20 steps | from float64: here | Keras | |", "|---|---|---|---|---|---|"]
    names = [name for width, name in old if width == 6 and name not in ("model of Keras", "---")]
    names += [name if " " in name else f"`{name}`" for name in by_check.get("keras-in", {})]
    for title in dict.fromkeys(names):
        name, before = title.strip("`"), old.get((6, title), [title, "–", "–", "–", "–", ""])
        training = by_check.get("keras-training", {}).get(name)
        distances = [short(distance) for distance in training.get("exact") or (None, None)] + [training["note"]] if training else before[3:]
        cells = [title, cell("keras-in", name, before[1]), cell("keras-training", name, before[2]), *distances]
        lines.append(f"| {' | '.join(cells)} |")
    print("\n" + "\n".join(lines))
    if update:
        before, rest = DOCUMENT.read_text().split("<!-- models-check -->\n")
        after = rest.split("<!-- end of models-check -->")[1]
        DOCUMENT.write_text(before + "<!-- models-check -->\n" + "\n".join(lines) + "\n<!-- end of models-check -->" + after)
