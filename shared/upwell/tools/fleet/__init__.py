"""`upwell fleet ...`: looking at a fleet and acting on it, over the REST interface of its service."""
