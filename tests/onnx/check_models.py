"""check_models.py DIRECTORY: checks the ONNX files that export_models wrote, with onnx.checker, and compares onnxruntime's outputs with
halftone's, in batches of 1 and of 7 rows. It prints the largest relative error of a row (norm of the difference / norm) of each file, and
fails if that is above 1e-5, or above 2e-2 for files with casts to short floats or rules of a policy."""

import json
import pathlib
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "U8": np.uint8, "F16": np.float16,
          "BF16": ml_dtypes.bfloat16}


def safetensors(path):
    """Returns the arrays of a .safetensors file by name."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(data[8 + size + begin:8 + size + end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


# Functions of the whole batch: halftone's outputs are those of one batch of all rows.
OF_THE_BATCH = ("op_rows_joined", "op_last_row", "op_mean_of_batch", "mlp_scaled_rules")


def session_of(path):
    """Returns a session for a file. The optimizer of onnxruntime takes every Q/DQ pair for one of integers: it rounds biases and drops a Relu
    before QuantizeLinear. So files with quantizers are run without it."""
    options = onnxruntime.SessionOptions()
    if "rules" in path.stem:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def numbered(arrays, kind):
    """Returns input0, input1, ... as a list."""
    return [arrays[f"{kind}{i}"] for i in range(sum(name.startswith(kind) for name in arrays))]


def run_reference(model, feeds):
    """Runs a model in the evaluator of the onnx package, for what onnxruntime does not implement."""
    from onnx.reference import ReferenceEvaluator
    return ReferenceEvaluator(model).run(None, feeds)


def error_of(ours, theirs, each=False):
    """Returns the largest relative error of a row, or of each number."""
    assert ours.shape == theirs.shape, f"shapes {ours.shape} and {theirs.shape}"
    if ours.dtype.kind in "ib":
        return float((ours != theirs).any())
    rows = ours.size if each else len(ours)
    ours, theirs = ours.astype(np.float64).reshape(rows, -1), theirs.astype(np.float64).reshape(rows, -1)
    special = ~np.isfinite(ours)  # infinite and NaN: the same ones at the same places
    if not np.array_equal(special, ~np.isfinite(theirs)) or not np.array_equal(ours[special], theirs[special], equal_nan=True):
        return np.inf
    ours, theirs = np.where(special, 0, ours), np.where(special, 0, theirs)
    difference = np.linalg.norm(theirs - ours, axis=1)
    norm = np.linalg.norm(ours, axis=1)
    if each:
        norm = np.maximum(norm, 1e-30)
    return float((difference / np.where(norm == 0, 1, norm)).max())


def check(path):
    """Returns the largest error of a file, and the evaluator that ran it."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    arrays = safetensors(path.with_suffix(".safetensors"))
    inputs, outputs = numbered(arrays, "input"), numbered(arrays, "output")
    names = [x.name for x in model.graph.input]
    try:
        session = session_of(path)
        runtime, run = "onnxruntime", lambda feeds: session.run(None, feeds)
    except Exception as failure:  # a type that its CPU kernels do not have
        if "casts" not in path.stem:
            raise
        print(f"  {path.stem}: onnxruntime: {str(failure).splitlines()[0][:150]}")
        runtime, run = "onnx.reference", lambda feeds: run_reference(model, feeds)
    worst = 0.0
    for rows in (1, 7):
        parts = [run({name: x[start:start + rows] for name, x in zip(names, inputs)}) for start in range(0, len(inputs[0]) - rows + 1, rows)]
        if path.stem in OF_THE_BATCH:
            continue  # here it only has to run
        for i, ours in enumerate(outputs):
            axis = 1 if path.stem == "layer_gru" and i == 1 else 0  # [directions, n, hidden]
            theirs = np.concatenate([part[i] for part in parts], axis)
            ours = ours[:, :theirs.shape[1]] if axis else ours[:len(theirs)]
            worst = max(worst, error_of(ours, theirs, path.stem.startswith("op_corner_")))
    if path.stem in OF_THE_BATCH:
        for ours, theirs in zip(outputs, run(dict(zip(names, inputs)))):
            worst = max(worst, error_of(ours, theirs))
    return worst, runtime, model


def main():
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
    assert len(files) >= 10, f"only {len(files)} files in {sys.argv[1]}"
    failed = 0
    for path in files:
        limit = 2e-2 if "casts" in path.stem or "rules" in path.stem else 1e-5
        try:
            error, runtime, model = check(path)
        except Exception as failure:
            print(f"{path.stem}: FAILED: {failure}")
            failed += 1
            continue
        wrong = not error <= limit
        failed += wrong
        print(f"{path.stem}: relative error {error:.1e} in {runtime}, opset {model.opset_import[0].version}" + (": TOO LARGE" if wrong else ""))
    print(f"{len(files)} files, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
