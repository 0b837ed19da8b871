"""Sends frames of a camera or a video to a picture model over HTTP, with OpenCV and the standard library.

python opencv_loop.py http://127.0.0.1:8000/v2/models/cats/infer [video.mp4 | 0]
"""

import http.client
import json
import sys
from urllib.parse import urlsplit

import cv2

url = urlsplit(sys.argv[1])
source = sys.argv[2] if len(sys.argv) > 2 else "0"
capture = cv2.VideoCapture(int(source) if source.isdigit() else source)
connection = http.client.HTTPConnection(url.netloc, timeout=10)  # kept for all frames
headers = {"Content-Type": "image/jpeg", "Upwell-Timeout-Ms": "500"}
while True:
    there, frame = capture.read()
    if not there:
        break
    _, jpeg = cv2.imencode(".jpg", frame)
    connection.request("POST", url.path, jpeg.tobytes(), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        print(response.status, answer["error"])
        continue
    for output in answer["outputs"]:
        print(response.headers["Upwell-Route"], output["name"], output["shape"], output["data"][:5])
