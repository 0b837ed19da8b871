"""`upwell drift` and `upwell model reference`: what rows were like, and what has moved since."""
