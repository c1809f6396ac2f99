"""Write the OpenAPI document of port 8888 from the route table, with prose and examples. No pod has
these modules: the document is the same in every pod, so the pod has a file."""
