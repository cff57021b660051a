"""A client of Triton's own library: one sequence, all outputs, as JSON.

    python triton_client.py <host:port> <model> <chunk> <file of int16 samples>

Runs in the environment of `envs/install_triton.sh`, without latflow.
"""

import base64
import json
import queue
import sys

import numpy as np
from tritonclient import grpc

OUTPUTS = ("TEXT", "CTM", "RAW_LATTICE")


def main(address, model, chunk, file):
    samples = np.fromfile(file, np.int16).astype(np.float32)
    answers = queue.Queue()
    client = grpc.InferenceServerClient(address)
    client.start_stream(lambda result, error: answers.put((result, error)))
    starts = range(0, len(samples), int(chunk))
    for start in starts:
        part = samples[start : start + int(chunk)]
        data = grpc.InferInput("WAV_DATA", [1, int(chunk)], "FP32")
        filled = np.zeros((1, int(chunk)), np.float32)
        filled[0, : len(part)] = part
        data.set_data_from_numpy(filled)
        size = grpc.InferInput("WAV_DATA_DIM", [1, 1], "INT32")
        size.set_data_from_numpy(np.array([[len(part)]], np.int32))
        client.async_stream_infer(
            model,
            [data, size],
            outputs=[grpc.InferRequestedOutput(name) for name in OUTPUTS],
            request_id=str(start),
            sequence_id=7,
            sequence_start=start == 0,
            sequence_end=start == starts[-1],
        )
    while True:
        result, error = answers.get(timeout=60)
        if error is not None:
            sys.exit(str(error))
        if result.get_response().id == str(starts[-1]):
            break
    client.stop_stream()
    found = {name: result.as_numpy(name).reshape(-1)[0] for name in OUTPUTS}
    texts = {name: base64.b64encode(value).decode() for name, value in found.items()}
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
