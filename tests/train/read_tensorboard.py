"""Reads what TensorBoardLogger wrote with TensorBoard's own package and compares it with the JSON lines.

Not part of ctest, as it needs the package `tensorboard`. By hand, from the repository's root:
    pip install tensorboard
    python tests/train/read_tensorboard.py build/release/tests/halftone_tests
runs the test that writes the same records to both. Or of a run of one's own that had both loggers:
    python tests/train/read_tensorboard.py DIRECTORY_OF_EVENTS FILE.jsonl
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def as_f32(value):
    """The value, or the string that stands for it, as bits: NaN equals NaN, -0 is not 0."""
    try:
        return struct.pack("<f", float(value))
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def compare(directory, json_lines):
    events = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    wanted_scalars, wanted_texts = {}, {}
    with open(json_lines, encoding="utf-8") as file:
        for record in map(json.loads, file):
            step, time = record.pop("step"), record.pop("time")
            for name, value in record.items():
                if isinstance(value, dict):
                    for title, text in value.items():
                        wanted_texts.setdefault(title + "/text_summary", []).append((step, text.encode()))
                else:
                    wanted_scalars.setdefault(name, []).append((step, time, as_f32(value)))
    scalars = {tag: [(e.step, e.wall_time, as_f32(e.value)) for e in events.Scalars(tag)]
               for tag in events.Tags()["scalars"]}
    texts = {tag: [(e.step, e.tensor_proto.string_val[0]) for e in events.Tensors(tag)]
             for tag in events.Tags()["tensors"]}
    assert scalars == wanted_scalars, f"{scalars}\n{wanted_scalars}"
    assert texts == wanted_texts, f"{texts}\n{wanted_texts}"
    for tag in texts:
        assert events.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    count = sum(map(len, scalars.values()))
    assert count > 0, "no scalars at all"
    print(f"TensorBoard reads the same {count} numbers under {len(scalars)} names, and {len(texts)} texts")


if len(sys.argv) == 3:
    compare(sys.argv[1], sys.argv[2])
else:
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], "-tc=CSV, JSON lines and TensorBoard*".replace(",", "\\,")], check=True,
                       env=dict(os.environ, HALFTONE_TEST_LOGS=directory))
        compare(directory + "/board", directory + "/log.jsonl")
