"""The Open Inference Protocol, once for both sides: converters, a servicer over a `Dataplane`, a server, a client."""
