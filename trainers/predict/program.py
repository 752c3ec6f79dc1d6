"""Writes the program `predict.py` of an exported model, from the parts that this kind of model needs."""

from __future__ import annotations

from trainers.checkpoint.description import IMAGE, TABLE, WORDS, Description
from trainers.data.dataset import LANGUAGE_MODELLING, TABULAR_REGRESSION

HEAD = '''\
"""Runs the model on {file}: python predict.py [FILE]. Needs torch, or onnxruntime alone{more}."""

{imports}from pathlib import Path

HERE = Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "model.json").read_text("utf-8"))
INPUT, OUTPUT = ABOUT["input"], ABOUT["output"]


def load():
    """Return a function that maps one prepared input to the output of the model."""
    try:
        import torch
    except ImportError:
        import numpy
        import onnxruntime

        session = onnxruntime.InferenceSession(HERE / "model.onnx")
        return lambda x: session.run(None, {{"input": numpy.array([x], "{dtype}")}})[0][0].tolist()
    model = torch.export.load(HERE / "model.pt2").module()
    return lambda x: model(torch.tensor([x], dtype=torch.{dtype}))[0].tolist()


'''

READ_IMAGE = '''\
def read(path):
    """Return (channels, height, width) numbers; PGM and PPM files of the model's size need no Pillow."""
    channels, height, width = INPUT["shape"]
    content = path.read_bytes()
    found = re.match(rb"P[56]\\s+%d\\s+%d\\s+255\\s" % (width, height), content)
    if found and len(content) == found.end() + channels * height * width:
        pixels = content[found.end() :]
    else:
        from PIL import Image, ImageOps

        image = ImageOps.exif_transpose(Image.open(path)).convert("L" if channels == 1 else "RGB")
        pixels = ImageOps.fit(image, (width, height), method=Image.Resampling.BILINEAR).tobytes()

    def number(c, y, x):
        value = round(pixels[(y * width + x) * channels + c] * INPUT["largest"] / 255)
        return (value - INPUT["mean"][c]) / INPUT["std"][c]

    return [[[number(c, y, x) for x in range(width)] for y in range(height)] for c in range(channels)]


'''

READ_ROW = '''\
def read(path):
    """Return the first row of a CSV file as the numbers that the model takes."""
    row, numbers = next(csv.DictReader(path.open(encoding="utf-8-sig", newline=""))), []
    for column in INPUT["columns"]:
        cell, values = row[column["name"]].strip(), column["values"]
        encoded = [cell == value for value in values]
        encoded += [cell != "" and cell not in values] if column["has_other"] else []
        numbers += encoded if values else [float(cell) if cell else INPUT["mean"][len(numbers)]]
        numbers += [cell == ""] if column["has_missing"] else []
    return [(x - mean) / std for x, mean, std in zip(numbers, INPUT["mean"], INPUT["std"])]


'''

TOKENS = {
    WORDS: '''\
def tokens_of(text):
    """Return the tokens of a text: one per word or mark in lower case; 1 is an unknown word."""
    about = INPUT["tokenizer"]
    number_of = {word: n for n, word in enumerate(about["vocabulary"], about["first_number"])}
    return [number_of.get(word, 1) for word in re.findall(about["pattern"], text.lower())]


''',
    "": '''\
def tokens_of(text):
    """Return the tokens of a text: one per character."""
    about = INPUT["tokenizer"]
    number_of = {character: n for n, character in enumerate(about["vocabulary"], about["first_number"])}
    return [number_of.get(character, 1) for character in text]


''',
    "pretrained": '''\
def tokens_of(text):
    """Return the tokens of a text, by the tokenizer of the pretrained model."""
    tokenizer = AutoTokenizer.from_pretrained(HERE / "huggingface")
    return tokenizer(text, add_special_tokens={marks}, truncation=True, max_length={length})["input_ids"]


''',
}

READ_TEXT = '''\
def read(path):
    """Return the tokens of a text file, padded or truncated to the model's length."""
    length = INPUT["shape"][0]
    tokens = tokens_of(path.read_text("utf-8"))[:length]
    return tokens + [INPUT["padding"]] * (length - len(tokens))


'''

FILE = """\
file = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "{example}"
if not file.is_file():
    sys.exit(f"There is no file {{file}}.")
"""

ANSWER_CLASSES = """\
scores = load()(read(file))
powers = [math.exp(score - max(scores)) for score in scores]
probabilities = [power / sum(powers) for power in powers]
for place in sorted(range(len(powers)), key=lambda place: -powers[place])[:10]:
    print(f"{probabilities[place]:7.2%}  {OUTPUT['class_names'][place]}")
"""

ANSWER_NUMBER = """\
print(load()(read(file))[0] * OUTPUT["std"] + OUTPUT["mean"])
"""

CONTINUE = """\
model, length = load(), INPUT["shape"][0]
text = file.read_text("utf-8")
tokens = tokens_of(text) or [0]
random.seed(0)
for _ in range(200):
    seen = tokens[-length:]
    scores = model(seen + [0] * (length - len(seen)))[len(seen) - 1]  # later positions have no influence
    powers = [math.exp((score - max(scores)) / 0.8) for score in scores]
    tokens += random.choices(range(len(powers)), powers)
print({decode})
"""


def program(info: Description, example: str) -> str:
    """Return the program for a model.

    Args:
        example: the file that the program uses by default.
    """
    inputs, task = info["input"], info["task"]
    is_language = task == LANGUAGE_MODELLING
    tokenizer = inputs["tokenizer"]["kind"] if "tokenizer" in inputs else None
    is_pretrained = tokenizer == "pretrained"
    imports = {"json": True, "sys": True, "csv": inputs["kind"] == TABLE, "random": is_language}
    imports["re"] = inputs["kind"] == IMAGE or tokenizer == WORDS
    imports["math"] = task != TABULAR_REGRESSION
    import_lines = "".join(f"import {name}\n" for name in sorted(imports) if imports[name])
    kind = {IMAGE: "an image", TABLE: "the first row of a table (CSV)"}.get(inputs["kind"], "a text")
    more = ", and Pillow for images of another size" if inputs["kind"] == IMAGE else ""
    text = HEAD.format(
        file=kind,
        more=", and transformers for the tokenizer" if is_pretrained else more,
        imports=import_lines,
        dtype="int64" if tokenizer else "float32",
    )
    if is_pretrained:
        first, last = "from pathlib import Path\n", "\nfrom transformers import AutoTokenizer\n"
        text = text.replace(first, first + last)
    if tokenizer is not None:
        block = TOKENS["pretrained"] if is_pretrained else TOKENS.get(tokenizer, TOKENS[""])
        length = 10**6 if is_language else inputs["shape"][0]
        text += block.replace("{marks}", str(not is_language)).replace("{length}", str(length))
    if not is_language:
        text += {IMAGE: READ_IMAGE, TABLE: READ_ROW}.get(inputs["kind"], READ_TEXT)
    text += FILE.format(example=example)
    decode = (
        'AutoTokenizer.from_pretrained(HERE / "huggingface").decode(tokens)'
        if is_pretrained
        else 'text + "".join(INPUT["tokenizer"]["vocabulary"][token] for token in tokens[-200:])'
    )
    if is_language:
        return text + CONTINUE.format(decode=decode)
    return text + (ANSWER_NUMBER if task == TABULAR_REGRESSION else ANSWER_CLASSES)


def snippet(info: Description) -> str:
    """Return at most ten lines of plain PyTorch that load the model and run it."""
    inputs = info["input"]
    lines = ["import json, torch", 'about = json.load(open("model.json"))']
    lines.append('model = torch.export.load("model.pt2").module()')
    if inputs["kind"] == IMAGE:
        channels, height, width = inputs["shape"]
        high = inputs.get("largest", 255) + 1
        lines.append(f"image = torch.randint(0, {high}, (1, {channels}, {height}, {width}))  # yours")
        lines.append('mean, std = (torch.tensor(about["input"][k]).view(-1, 1, 1) for k in ("mean", "std"))')
        lines.append("scores = model((image - mean) / std)")
    elif inputs["kind"] == TABLE:
        lines.append(f'row = torch.tensor([about["input"]["low"]])  # your {inputs["shape"][0]} numbers')
        lines.append('mean, std = (torch.tensor(about["input"][k]) for k in ("mean", "std"))')
        lines.append("scores = model((row - mean) / std)")
    else:
        length = inputs["shape"][0]
        lines.append(f"tokens = torch.ones(1, {length}, dtype=torch.int64)  # of your text: see predict.py")
        lines.append("scores = model(tokens)")
    if info["task"] == TABULAR_REGRESSION:
        lines.append('print(scores[0, 0] * about["output"]["std"] + about["output"]["mean"])')
    elif info["task"] == LANGUAGE_MODELLING:
        lines.append("print(scores[0, -1].softmax(-1).topk(5))  # the most probable next tokens")
    else:
        lines.append("probabilities = scores.softmax(-1)[0].tolist()")
        lines.append('print(dict(zip(about["output"]["class_names"], probabilities)))')
    return "\n".join(lines) + "\n"
