"""`upwell fleet ...`: views and controls a fleet over the REST interface of its service."""
