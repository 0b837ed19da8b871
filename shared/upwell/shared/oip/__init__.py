"""The Open Inference Protocol for both sides: converters, a servicer over a `Dataplane`, servers and clients."""
