"""The Open Inference Protocol over HTTP/1.1: a threaded server over a `Dataplane`, and a client."""
