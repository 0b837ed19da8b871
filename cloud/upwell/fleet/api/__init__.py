"""The REST interface for people and programs. One table yields both its routes and its OpenAPI document."""
