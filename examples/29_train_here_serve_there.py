"""Runs the ONNX file of lesson 29 in onnxruntime, and compares the logits with halftone's.

    pip install numpy onnxruntime && python examples/29_train_here_serve_there.py runs/onnx
"""
import sys

import numpy as np
import onnxruntime

images, expected = (np.fromfile(f"{sys.argv[1]}/{name}.f32", np.float32) for name in ("images", "logits"))
session = onnxruntime.InferenceSession(f"{sys.argv[1]}/lenet.onnx")
logits = session.run(None, {"input": images.reshape(-1, 1, 28, 28)})[0]
error = np.linalg.norm(logits.reshape(-1) - expected) / np.linalg.norm(expected)
print("\n".join("".join(f"{x:8.3f}" for x in row) for row in logits[:3]), f"\n{len(logits)} rows, relative error {error:.1e}")
sys.exit(not error <= 1e-5)
