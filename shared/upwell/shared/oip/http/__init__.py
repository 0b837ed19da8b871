"""The Open Inference Protocol over HTTP/1.1: bodies, TLS, and the replies that both sides read."""
