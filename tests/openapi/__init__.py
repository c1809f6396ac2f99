"""schemathesis against the OpenAPI document of a daemon of its own."""
