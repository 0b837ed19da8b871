"""The REST interface for people and programs; its OpenAPI document is made from the same table as its routes."""
