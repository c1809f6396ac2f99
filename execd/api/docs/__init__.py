"""The descriptions of the api: the OpenAPI document, and the page that shows the document."""
