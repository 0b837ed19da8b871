"""KServe's own clients against a server: `kserve_client.py GRPC HTTP MODEL`, with the package `kserve`. Prints JSON."""

import asyncio
import json
import sys

import numpy as np
from kserve import (  # type: ignore[import-not-found]  # in an environment of its own
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
)
from kserve.inference_client import RESTConfig  # type: ignore[import-not-found]  # as above

GRPC, HTTP, MODEL = sys.argv[1:]
X = np.arange(16, dtype=np.float32).reshape(2, 8)


def request(*, is_binary: bool) -> InferRequest:
    given = InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X, binary_data=is_binary)
    return InferRequest(MODEL, [given], request_id="kserve")


async def main() -> None:
    over_grpc = InferenceGRPCClient(GRPC)
    over_http = InferenceRESTClient(RESTConfig(protocol="v2"))
    found = {
        "live": [await over_grpc.is_server_live(), await over_http.is_server_live(HTTP)],
        "ready": [await over_grpc.is_server_ready(), await over_http.is_server_ready(HTTP)],
        "model ready": [await over_grpc.is_model_ready(MODEL), await over_http.is_model_ready(HTTP, MODEL)],
    }
    answers = [await over_grpc.infer(request(is_binary=True))]
    answers += [await over_http.infer(HTTP, request(is_binary=one), model_name=MODEL) for one in (False, True)]
    found["ids"] = [answer.id for answer in answers]
    found["scores"] = [answer.outputs[0].as_numpy().tolist() for answer in answers]
    await over_grpc.close()
    await over_http.close()
    print(json.dumps(found))


asyncio.run(main())
