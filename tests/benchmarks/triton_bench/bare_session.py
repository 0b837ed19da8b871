"""The session without any server: `bare_session.py MODEL INPUTS.npz SECONDS`, once it reads a line; prints JSON."""

import json
import sys
import time

import numpy as np
import onnxruntime

model, inputs, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
with np.load(inputs, allow_pickle=False) as file:
    feed = dict(file)
names = [output.name for output in session.get_outputs()]
for _ in range(5):
    session.run(names, feed)
print("ready", flush=True)
sys.stdin.readline()
times_s = []
begin_s = end_s = time.perf_counter()
while end_s - begin_s < seconds:
    start_s = end_s
    session.run(names, feed)
    end_s = time.perf_counter()
    times_s.append(end_s - start_s)
p50_s, p99_s = np.percentile(times_s, [50, 99])
print(json.dumps({"per_s": len(times_s) / (end_s - begin_s), "p50_s": p50_s, "p99_s": p99_s}))
